"""A server that answers like the APIs and logs its requests. Standalone: fake.py DIRECTORY [OPTIONS as JSON].

GET or POST /any?status=429&times=2&retry-after=3     this status for the first two requests of this path, then 200
GET /to?url=…            a redirection
GET /break               closes the connection without an answer
GET /hold, /tear         the head and one piece of a response; when server.go is set, the rest, or the end of the connection
POST /v1/chat/completions, /v1/responses              OpenAI's, as JSON or as a stream
POST /v1/messages                                     Anthropic's
"""

import gzip
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

WORDS = ["the", "moon", "is", "far", "away", "and", "the", "reader", "has", "left"]


class Server(ThreadingHTTPServer):
    """options: seconds before each event of a stream (pace), words in one event (words), the longest way of a request in
    seconds (jitter)."""

    daemon_threads = True
    request_queue_size = 512
    provider = None  # What limits the requests of AI providers' APIs: see provider.py.

    def __init__(self, log=None, **options):
        super().__init__(("127.0.0.1", 0), Handler)
        self.options, self.log = options, log
        self.lock, self.go = threading.Lock(), threading.Event()
        self.paths, self.arrivals, self.headers, self.bodies = Counter(), [], [], []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def arrived(self, path, headers, body):
        """The time, and the number of earlier requests of this path."""
        time.sleep(random.uniform(0, self.options.get("jitter", 0)))
        now = time.monotonic_ns()
        with self.lock:
            self.paths[path] += 1
            self.arrivals.append(now)
            self.headers.append(headers)
            self.bodies.append(body)
            return now, self.paths[path] - 1

    def write(self, headers, now, tokens, status=200):
        """A line of the log: a time surely before its start, the time of its arrival, its tokens, its status."""
        if self.log is not None:
            with self.lock:
                os.write(self.log, b"%s %d %d %d\n" % (headers.get("X-Asked", "0").encode(), now, tokens, status))

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # Clients may disconnect during a response.
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    limits = {}  # Further headers.
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_):
        pass

    def do_GET(self):
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        body = self.read_body()
        now, before = self.server.arrived(parts.path, self.headers, body)
        if parts.path.startswith("/v1/"):
            return self.api(parts.path, json.loads(body), now, query)
        is_refused = before < int(query.get("times", 0))
        self.server.write(self.headers, now, 1, int(query["status"]) if is_refused else 200)
        if parts.path.endswith("/to"):
            return self.answer(302, b"", Location=query["url"])
        if parts.path == "/break":
            self.close_connection = True
            return None
        if parts.path in ("/hold", "/tear"):
            return self.stream("text/plain", self.held(parts.path == "/tear"))
        if is_refused:
            after = {"Retry-After": query["retry-after"]} if "retry-after" in query else {}
            return self.answer(int(query["status"]), b"not now", **after)
        return self.answer(200, b"fine")

    do_POST = do_GET

    def read_body(self):
        if "Transfer-Encoding" in self.headers:
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def held(self, tears):
        yield b"first "
        self.server.go.wait(30)
        if tears:
            self.close_connection = True
            raise ConnectionAbortedError
        yield b"last"

    def answer(self, status, body, kind="text/plain", **headers):
        self.send_response_only(status)
        for name, value in (headers | self.limits).items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, kind, pieces):
        self.send_response_only(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        for name, value in self.limits.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    # ---- AI providers ----

    def api(self, path, asked, now, query):
        said = json.dumps(asked.get("messages") or asked.get("input"))
        most = asked.get("max_tokens") or asked.get("max_completion_tokens") or asked.get("max_output_tokens") or 100
        # A test sets the length of the answer in metadata. A word counts as a token.
        words = int((asked.get("metadata") or {}).get("words", len(WORDS)))
        words = min(words, most)
        inputs = -(-len(said) // 8)
        self.limits = {}
        if self.server.provider is not None:
            self.limits, is_refused = self.server.provider.arrived(path, inputs, most)
            if is_refused:
                return self.answer(429, b'{"error": {"message": "slow down"}}', "application/json")
        self.server.write(self.headers, now, inputs + words)
        answer = [WORDS[number % len(WORDS)] for number in range(words)]
        make = {"/v1/chat/completions": Chat, "/v1/responses": Responses, "/v1/messages": Messages}[path]
        api = make(asked, inputs, answer)
        api.each = self.server.options.get("words", 1)
        if asked.get("stream"):
            return self.stream("text/event-stream; charset=utf-8", self.paced(api.events()))
        body = json.dumps(api.whole()).encode()
        if "gzip" in self.headers.get("Accept-Encoding", "") and "gzip" in query:
            return self.answer(200, gzip.compress(body), "application/json", Content_Encoding="gzip")
        return self.answer(200, body, "application/json")

    def paced(self, events):
        for name, event in events:
            time.sleep(self.server.options.get("pace", 0))
            data = event if isinstance(event, str) else json.dumps(event)
            yield (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


class Api:
    """The answer of an API."""

    each = 1  # Words in one event.

    def texts(self):
        """Yields the events of a stream."""
        for at in range(0, len(self.answer), self.each):
            yield " ".join(self.answer[at : at + self.each]) + " "


class Chat(Api):
    """OpenAI's chat completions."""

    def __init__(self, asked, inputs, answer):
        self.asked, self.answer = asked, answer
        count = len(answer)
        self.usage = {"prompt_tokens": inputs, "completion_tokens": count, "total_tokens": inputs + count}
        self.head = {"id": "chatcmpl-1", "created": 1, "model": asked["model"]}

    def whole(self):
        message = {"role": "assistant", "content": " ".join(self.answer)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return self.head | {"object": "chat.completion", "choices": [choice], "usage": self.usage}

    def events(self):
        head = self.head | {"object": "chat.completion.chunk"}
        for text in self.texts():
            yield (
                None,
                head | {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], "usage": None},
            )
        yield None, head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None}
        if (self.asked.get("stream_options") or {}).get("include_usage"):
            yield None, head | {"choices": [], "usage": self.usage}
        yield None, "[DONE]"


class Responses(Api):
    """OpenAI's responses."""

    def __init__(self, asked, inputs, answer):
        self.answer, count = answer, len(answer)
        usage = {"input_tokens": inputs, "output_tokens": count, "total_tokens": inputs + count}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        self.usage = usage | details
        self.head = {
            "id": "resp_1", "object": "response", "created_at": 1, "model": asked["model"], "parallel_tool_calls": False,
            "tool_choice": "auto", "tools": [],
        }  # fmt: skip

    def whole(self):
        text = {"type": "output_text", "text": " ".join(self.answer), "annotations": []}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
        return self.head | {"status": "completed", "output": [message], "usage": self.usage}

    def events(self):
        begun = self.head | {"status": "in_progress", "output": [], "usage": None}
        numbers = iter(range(10**6))

        def event(kind, **rest):
            return kind, {"type": kind, "sequence_number": next(numbers), **rest}

        where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        yield event("response.created", response=begun)
        item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        yield event("response.output_item.added", output_index=0, item=item)
        yield event("response.content_part.added", part={"type": "output_text", "text": "", "annotations": []}, **where)
        for text in self.texts():
            yield event("response.output_text.delta", delta=text, logprobs=[], **where)
        yield event("response.completed", response=self.whole())


class Messages(Api):
    """Anthropic's messages."""

    def __init__(self, asked, inputs, answer):
        self.inputs, self.answer = inputs, answer
        self.head = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": asked["model"],
            "stop_sequence": None,
        }

    def whole(self):
        usage = {"input_tokens": self.inputs, "output_tokens": len(self.answer)}
        return self.head | {
            "content": [{"type": "text", "text": " ".join(self.answer)}],
            "stop_reason": "end_turn",
            "usage": usage,
        }

    def events(self):
        begun = self.head | {
            "content": [],
            "stop_reason": None,
            "usage": {"input_tokens": self.inputs, "output_tokens": 1},
        }
        yield "message_start", {"type": "message_start", "message": begun}
        yield (
            "content_block_start",
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        )
        yield "ping", {"type": "ping"}
        for text in self.texts():
            delta = {"type": "text_delta", "text": text}
            yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": 0}
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        yield "message_delta", {"type": "message_delta", "delta": delta, "usage": {"output_tokens": len(self.answer)}}
        yield "message_stop", {"type": "message_stop"}


@contextmanager
def serving(**options):
    """A server in this process."""
    with Server(**options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.go.set()
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    file = os.open(os.path.join(sys.argv[1], "arrivals.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    with Server(log=file, **json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}")) as alone:
        print(alone.url, flush=True)
        threading.Thread(
            target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True
        ).start()  # It ends with the process that started it.
        alone.serve_forever()
