"""The dashboard and the alerts, checked by Prometheus's own tool. The core tests that each metric name exists."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GRAFANA = HERE.parents[3] / "docs/grafana"
DASHBOARD = json.loads((GRAFANA / "workglow-limit.json").read_text())

promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="there is no promtool: apt-get install prometheus")


def check(*arguments):
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def queries():
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return found + [note["expr"] for note in DASHBOARD["annotations"]["list"] if "expr" in note]


@promtool
def test_the_alerts_are_rules():
    assert "7 rules found" in check("check", "rules", GRAFANA / "alerts.yml")


@promtool
def test_each_alert_fires_only_when_it_should(tmp_path):
    tests = tmp_path / "tests.yml"
    tests.write_text((HERE / "alerts_tests.yml").read_text().replace("RULES", str(GRAFANA / "alerts.yml")))
    assert "SUCCESS" in check("test", "rules", tests)


@promtool
def test_each_query_of_the_dashboard_is_valid(tmp_path):
    rules = []
    for number, query in enumerate(queries()):
        for variable in "instance", "limit":
            query = query.replace(f"${variable}", ".*")
        query = query.replace("$__rate_interval", "1m").replace("$__interval", "1m")
        assert "$" not in query
        rules.append({"record": f"query:{number}", "expr": query})
    file = tmp_path / "rules.json"  # which is also YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in check("check", "rules", file)


def test_the_dashboard_is_complete():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"]) >= 15
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "instance", "limit"]
    places = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not covered & places, panel["title"]
        places |= covered
        assert panel["datasource"]["uid"] == "${datasource}" and panel["description"]
