"""The programs of test_prometheus.py: served.py PATH serves the metrics of a store, served.py PATH work uses it until it is killed."""

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from workglow_limit import AcquireTimeout, Store, metrics_content_type

#: A name that every format must escape.
ODD = 'odd "names"\\ of\nlines\r\t\0, 日本 and {label="values"}'


def work(store):
    """Uses limits of all kinds in turn."""
    rate = store.limiter("rate", "200/1s + 2000/1m")
    long = store.limiter("long", "1000000/1h")
    jobs = store.limiter("jobs", "3 concurrent")
    odd = store.limiter(ODD, "1000/1m")
    print("at work", flush=True)
    turn = 0
    while True:
        turn += 1
        rate.try_acquire(f"tenant-{turn % 20}", 3)
        long.try_acquire(f"tenant-{turn % 5}")
        odd.try_acquire()
        try:
            with jobs.acquire(timeout=0.005):
                time.sleep(0.001)
        except AcquireTimeout:
            pass
        reserved = rate.reserve("queue", max_wait=5)
        if reserved and turn % 2:
            reserved.cancel()


def serve(store):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            form = "openmetrics" if self.path == "/openmetrics" else "prometheus"
            body = store.metrics(format=form).encode()
            self.send_response(200)
            self.send_header("Content-Type", metrics_content_type(form))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _, path, *what = sys.argv
    (work if what else serve)(Store(f"sqlite:{path}", timeout=30))
