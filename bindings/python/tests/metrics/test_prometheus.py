"""A real Prometheus scrapes while processes that use the store are killed."""

import json
import random
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from served import ODD

pytestmark = pytest.mark.skipif(
    not shutil.which("prometheus"), reason="there is no prometheus: apt-get install prometheus"
)

FORMATS = "openmetrics", "prometheus"
WORKERS, SCRAPES = 3, 12

CONFIGURATION = """
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
""" + "".join(
    f"  - {{job_name: {form}, metrics_path: /{form}, static_configs: [{{targets: ['127.0.0.1:PORT']}}]}}\n"
    for form in FORMATS
)


def until(is_so):
    end = time.monotonic() + 240
    while not (answer := is_so()):
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.25)
    return answer


def start(stack, *command, **options):
    """A process that ends with the test."""
    process = subprocess.Popen([*map(str, command)], text=True, **options)
    stack.callback(process.communicate)
    stack.callback(process.kill)
    return process


def program(stack, *arguments):
    process = start(stack, sys.executable, HERE / "served.py", *arguments, stdout=subprocess.PIPE)
    return process, process.stdout.readline().strip()


def prometheus(stack, folder, port):
    """The address of a Prometheus that scrapes an endpoint."""
    (folder / "prometheus.yml").write_text(CONFIGURATION.replace("PORT", port))
    log = folder / "prometheus.log"
    options = (
        "--web.listen-address=127.0.0.1:0",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
    )
    with log.open("w") as file:
        start(stack, "prometheus", *options, stdout=file, stderr=subprocess.STDOUT)
    listening = re.compile(r"Listening on\S* address=(?!127.0.0.1:0\b)(\S+)")
    address = until(lambda: (found := listening.search(log.read_text())) and found[1])
    until(lambda: is_ready(address))
    return address


def is_ready(address):
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=60):
            return True
    except urllib.error.HTTPError as error:
        assert error.code == 503
        error.close()
        return False


def get(address, what):
    with urllib.request.urlopen(f"http://{address}/api/v1/{what}", timeout=60) as response:
        answer = json.load(response)
    assert answer["status"] == "success", answer
    return answer["data"]


def ask(address, query):
    """Returns the current result of a query: labels and values."""
    found = get(address, f"query?{urllib.parse.urlencode({'query': query})}")["result"]
    return [(one["metric"], one.get("values") or [one["value"]]) for one in found]


def gone_back(samples):
    """Returns the samples at which a counter decreased."""
    values = [float(value) for _, value in samples]
    return [(before, after) for before, after in zip(values, values[1:]) if after < before]


def test_a_decreasing_counter_is_detected():
    assert gone_back([(1, "0"), (2, "5"), (3, "5")]) == []
    assert gone_back([(1, "0"), (2, "5"), (3, "4")]) == [(5, 4)]


def test_no_counter_decreases_when_processes_are_killed(tmp_path):
    chance = random.Random(7)
    with ExitStack() as stack:
        path = tmp_path / "limits.db"
        workers = [program(stack, path, "work") for _ in range(WORKERS)]
        address = prometheus(stack, tmp_path, program(stack, path)[1])

        errors = set()

        def has_asked():
            worker = chance.randrange(WORKERS)
            workers[worker][0].kill()
            workers[worker] = program(stack, path, "work")
            errors.update(target["lastError"] for target in get(address, "targets")["activeTargets"])
            answered = {
                metric["job"]: float(values[-1][1]) for metric, values in ask(address, "sum_over_time(up[10m])")
            }
            return min(answered.get(form, 0) for form in FORMATS) >= SCRAPES

        until(has_asked)
        # Prometheus parsed every text of both formats. (On a busy machine an answer may be late.)
        assert {error for error in errors if error and "context deadline exceeded" not in error} == set()
        names = {metric["limit"] for metric, _ in ask(address, "workglow_limit_info")}
        assert names == {"rate", "long", "jobs", ODD}

        counters = ask(address, '{__name__=~"workglow_limit_.*_(total|bucket|count|sum)"}[10m]')
        assert {metric["__name__"] for metric, _ in counters} >= {
            "workglow_limit_admitted_total",
            "workglow_limit_wait_seconds_bucket",
        }
        back = {json.dumps(metric): gone_back(values) for metric, values in counters if gone_back(values)}
        assert back == {}
        for form in FORMATS:
            admitted = ask(address, f'workglow_limit_admitted_total{{limit="long",job="{form}"}}[10m]')
            assert len(admitted) == 1
            values = [float(value) for _, value in admitted[0][1]]
            assert len(values) >= SCRAPES / 2 and values[-1] > values[0]
