"""Reports the measurements: report.py writes target/bench/docs from target/bench/results.json.

`show` prints them, `write` makes benchmarks.md with its pictures, `write_short` the README's two tables.
"""

import json
import sys
from pathlib import Path

import tomllib

HERE = Path(__file__).resolve().parent
OURS = "workglow-limit"

# Each group's title, the peer that its rows are compared with (the same call, from as many threads), and its description.
GROUPS = {
    "rust": (
        "Rust",
        "governor {what}, monotonic clock{threads}",
        "Ours is called through the concrete types, like the peers; `with its end` goes through the trait. Admissions use a "
        "limit of 100 in 1 µs, which is never full; `counted` one of 1,000,000,000 per second, which is above 4,096 units; the "
        "token bucket and governor 1,000,000,000 per second. Denials use a limit of 1 per hour. governor's other clock reads the "
        "processor's time stamp counter, which is not one clock for all processes across suspend and migration.",
    ),
    "c": (
        "C",
        "mutex and ring {what}{threads}",
        "The ring holds the last 100 starts under a `pthread_mutex`, the usual code for one process.",
    ),
    "python": ("Python", "python deque and lock: {rest}", "`deque and lock` is the usual code for one process."),
    "node": ("Node", "node limiter: {rest}", "`limiter` is the package of that name, called synchronously."),
    "processes": (
        "Processes on one key",
        "redis {rest}",
        "Ours is one `sqlite:` store. Redis is on a unix socket, and each process keeps its connection: `EVALSHA` of the usual "
        "sorted-set log, by the server's time. The transaction is the same log in one SQLite file (WAL, `synchronous = NORMAL`, "
        "`BEGIN IMMEDIATE`). Admissions use a limit of 100 in 1 µs, denials a spent one of 100 per second. The time of a "
        "decision is measured in one process, including its waits for a core, without the CPU time of the server.",
    ),
}

# The growth curves: title and description.
CURVES = {
    "limit": (
        "Limits from 10 to 1,000,000 units",
        "All limits allow 2.5 units per microsecond and are about half full. Up to 4,096 units each start is kept; above that, "
        "starts are counted.",
    ),
    "keys": ("Keys in random order", "All keys are in use. They are random texts of 23 bytes."),
    "window": (
        "Windows from 1 ms to 30 days",
        "Admissions use a limit of 1,000,000,000, denials a spent one of 100. `a limit of 100 used up` is the mean of a start "
        "when each key uses all of its 100: with windows above two minutes it waits for commits, some 40 of them.",
    ),
    "processes": (
        "Processes on one key",
        "The time of a decision is a second, divided by the decisions of all processes in it.",
    ),
    "names": ("Limits in one store, in random order", "Limits of 100, each with one key."),
}


# ---- words ----


def time_of(ns: float | None) -> str:
    if ns is None:
        return ""
    for size, unit in [(1e9, "s"), (1e6, "ms"), (1e3, "µs")]:
        if abs(ns) >= size:
            return f"{ns / size:.3g} {unit}" if abs(ns) < size * 1e3 else f"{ns / size:,.0f} {unit}"
    return f"{ns:.0f} ns"


def span_of(us: int) -> str:
    for size, unit in [(86_400_000_000, "d"), (3_600_000_000, "h")]:
        if us >= size:
            return f"{us // size} {unit}"
    return time_of(us * 1e3)


def many(number: float) -> str:
    return f"{number / 1e6:.1f} million" if number >= 1e6 else f"{number:,.0f}"


def ratio_of(ratio: float) -> str:
    if ratio < 0.095:
        return f"1/{1 / ratio:,.0f}"
    return f"{ratio:,.0f} ×" if ratio >= 100 else f"{ratio:.2f} ×" if ratio < 1 else f"{ratio:.1f} ×"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ---- targets ----


def judged(results: dict) -> list[list[str]]:
    """Returns for each target: its name, the target, the measurement, ok or MISS, and the reason for a miss."""
    cases = {case["case"]: case for case in results["cases"]}
    rows = []
    for target in tomllib.loads((HERE / "targets.toml").read_text())["target"]:
        figure = target.get("figure", "ns")

        def figures(names):
            return [cases[name][figure] for name in ([names] if isinstance(names, str) else names) if name in cases]

        ours, theirs = figures(target["case"]), figures(target["than"]) if "than" in target else [1.0]
        is_least = "at_least" in target
        bound = target["at_least" if is_least else "at_most"]
        text = lambda value: ratio_of(value) if "than" in target else f"{value:,.0f}"
        promised = f"at {'least' if is_least else 'most'} {text(bound)}"
        if not ours or not theirs:
            rows.append([target["what"], promised, "not measured", "", ""])
            continue
        # The worst of several of our cases counts, and the most expensive of those that they are compared with.
        measured = [one / max(theirs) for one in ours]
        is_kept = min(measured) >= bound if is_least else max(measured) <= bound
        rows.append(
            [
                target["what"],
                promised,
                ", ".join(map(text, measured)),
                "ok" if is_kept else "MISS",
                target.get("why", ""),
            ]
        )
    return rows


# ---- tables ----


def peer_of(case: dict, pattern: str) -> str:
    """Returns the name of the case that this one is compared with."""
    name = case["case"]
    rest = (
        name.split(": ", 1)[1]
        if ": " in name
        else name.split(" ", 2 if name.split(" ")[1] in ("memory", "sqlite") else 1)[-1]
    )
    threads = ", 2 threads" if name.endswith(", 2 threads") else ""
    found = pattern.format(what="deny" if "deny" in name else "admit", threads=threads, rest=rest)
    return "" if found == name else found


def rows_of(results: dict, group: str, pattern: str) -> list[list[str]]:
    cases = [case for case in results["cases"] if case["group"] == group and case.get("ns") is not None]
    found = {case["case"]: case["ns"] for case in cases}
    rows = []
    for case in cases:
        name = f"**{case['case']}**" if case["peer"] == OURS else case["case"]
        peer = found.get(peer_of(case, pattern))
        tails = [time_of(case.get("p99")), time_of(case.get("p999")), time_of(case.get("cpu_ns"))]
        spread = f"{time_of(case['least'])} to {time_of(case['greatest'])}"
        rows.append([name, time_of(case["ns"]), ratio_of(case["ns"] / peer) if peer else "", *tails, spread])
        if group == "processes":
            rows[-1].insert(1, many(case["per_second"]))
    return rows


def head_of(group: str, pattern: str) -> list[str]:
    speed = ["decisions per second"] if group == "processes" else []
    peer = pattern.split(" {")[0].removesuffix(":")
    return ["", *speed, "a decision", f"against {peer}", "p99", "p99.9", "CPU time", "of all rounds"]


def most_of(results: dict) -> list[list[str]]:
    rows = []
    for case in results["cases"]:
        if "most" in case:
            who = next((f"{case[of]} {of}" for of in ("processes", "threads") if case.get(of)), "")
            name = f"**{case['case']}**" if case["peer"] == OURS else case["case"]
            rows.append([name, who, str(case["limit"]), str(case["most"])])
    return rows


def growth_of(results: dict, curve: str) -> str:
    cases = [case for case in results["cases"] if case.get("curve") == curve]
    series = list(dict.fromkeys(case["series"] for case in cases))
    found = {(case["series"], case["x"]): case for case in cases}
    each = "bytes_each" if any("bytes_each" in case for case in cases) else "bytes"
    sizes = [one for one in series if any(case["series"] == one and each in case for case in cases)]
    of = {"limit": "a key", "keys": "a key", "names": "a limit", "processes": "the store"}.get(curve, "")
    rows = []
    for x in sorted({case["x"] for case in cases}):
        row = [span_of(x) if curve == "window" else f"{x:,}"]
        row += [time_of(found.get((one, x), {}).get("ns")) for one in series]
        row += [f"{found[one, x][each]:,.0f} B" if each in found.get((one, x), {}) else "" for one in sizes]
        rows.append(row)
    return table(["", *series, *(f"{of}: {one}" for one in sizes)], rows)


# ---- pages ----


def origin(results: dict) -> str:
    machine, commit = results["machine"], results["commit"] + (", with changes" if results["dirty"] else "")
    rounds = f"medians over {results['rounds']} rounds" if results["rounds"] > 1 else "one round"
    return (
        f"`{results['command']}` on commit {commit}, {results['date']}: {rounds}, on {machine['cores']} cores of "
        f"{machine['cpu']}, {machine['memory']}, {machine['system']}, {machine['kernel']}"
    )


def page(results: dict) -> str:
    parts = ["# What a decision costs"]
    parts.append(
        "`make bench-publish` writes this page. `make bench` repeats the measurement: it installs the peers from their registries, "
        "runs all programs in turn, round after round, so that all run under the same conditions, and writes `target/bench`. "
        "Nanoseconds depend on the machine; ratios less so."
    )
    parts.append(origin(results) + f". Load before the run: {results['machine']['load before']}.")
    parts.append(
        "Versions: " + ", ".join(f"{name} {version}" for name, version in sorted(results["versions"].items())) + "."
    )
    parts.append("## Targets\n\nThe most expensive of several cases counts.\n")
    targets = judged(results)
    parts[-1] += "\n" + table(["", "target", "measured", ""], [row[:4] for row in targets])
    if missed := [f"* **{what}.** {why}" for what, _, _, verdict, why in targets if verdict == "MISS"]:
        parts.append("Missed targets, and the reasons:\n\n" + "\n".join(missed))
    groups = {case["group"] for case in results["cases"] if case.get("ns") is not None}
    if groups & GROUPS.keys():
        parts.append("![The time of an admission, ours and others, in each language](benchmarks/admissions.svg)")
    for group, (title, pattern, words) in GROUPS.items():
        if group in groups:
            parts.append(
                f"## {title}\n\n{words}\n\n" + table(head_of(group, pattern), rows_of(results, group, pattern))
            )
    if rows := most_of(results):
        parts.append(
            "## Limiters that keep the limit\n\nThe most starts in any half-open window, next to the limit. A start lies between "
            "the clock before the call and the clock after it, and counts if that whole interval is in the window. All "
            "limiters get the same load on one key: one start first, none for most of a window, then as many as are admitted, "
            "across the ends of two windows.\n\n" + table(["", "from", "limit", "most"], rows)
        )
    curves = [curve for curve in CURVES if any(case.get("curve") == curve for case in results["cases"])]
    if curves:
        parts.append("## Growth\n\nOur limiters in Rust, through the trait; `governor` has the same keys.")
        for curve in curves:
            title, words = CURVES[curve]
            picture = f"![{title}: time and memory](benchmarks/{curve}.svg)"
            parts.append(f"### {title}\n\n{words}\n\n{picture}\n\n{growth_of(results, curve)}")
    parts.append(
        "## How it is measured\n\n"
        "* `a decision`: the median over batches of up to some hundred decisions, and the median of that over rounds. For "
        "several threads or processes: the mean, measured in each of them.\n"
        "* `p99`, `p99.9`: percentiles of decisions timed one by one. Each includes one read of the clock.\n"
        "* `CPU time`: the kernel's count for a thread or process, per decision.\n"
        "* `of all rounds`: the least and the greatest median of a round.\n"
        "* Within a program, cases get short slices in turn. Each case checks that it got the answers that its name states."
    )
    return "\n\n".join(parts) + "\n"


def write(results: dict, docs: Path) -> None:
    import plots  # Only drawing needs matplotlib.

    docs.mkdir(parents=True, exist_ok=True)
    (docs / "benchmarks.md").write_text(page(results))
    plots.draw(results, docs / "benchmarks", list(CURVES))


# The README's table of speed: what it is, our case, the other program and its case.
SHORT = [
    ("Rust, `sqlite:`", "rust sqlite admit", "governor, one process", "governor admit, monotonic clock"),
    ("C, `sqlite:`", "c sqlite admit", "a mutex and a ring, one process", "mutex and ring admit"),
    ("Python, `sqlite:`", "python sqlite admit", "a deque and a lock, one process", "python deque and lock: admit"),
    ("Node, `sqlite:`", "node sqlite admit", "`limiter`, one process", "node limiter: admit"),
    ("4 processes, one key", "ours admit, 4 processes", "a Lua script in Redis", "redis admit, 4 processes"),
    ("4 processes, one key", "ours admit, 4 processes", "a SQLite transaction", "transaction admit, 4 processes"),
]
# The README's table of peers: who, the case that hammers a limit of 100 per second, the case that times an admission.
PEERS = [
    ("**this one, Python, 4 processes**", "python sqlite: most", "python sqlite admit, 4 processes"),
    ("**this one, Node, 4 processes**", "node sqlite: most", "node sqlite admit, 4 processes"),
    ("pyrate-limiter, SQLite and file lock, 4 processes", "python pyrate-limiter, SQLite and file lock: most",
     "python pyrate-limiter, SQLite and file lock: admit, 4 processes"),
    ("limits, moving window", "python limits moving window, memory: most", "python limits moving window, memory: admit"),
    ("limits, fixed window", "python limits fixed window, memory: most", "python limits fixed window, memory: admit"),
    ("throttled-py, sliding window", "python throttled-py sliding window, memory: most",
     "python throttled-py sliding window, memory: admit"),
    ("aiolimiter", "python aiolimiter: most", "python aiolimiter: admit, awaited"),
    ("limiter (npm)", "node limiter: most", "node limiter: admit"),
    ("rate-limiter-flexible", "node rate-limiter-flexible, memory: most", "node rate-limiter-flexible, memory: admit"),
    ("express-rate-limit", "node express-rate-limit, memory store: most", "node express-rate-limit, memory store: admit"),
    ("bottleneck", "node bottleneck: most", "node bottleneck: admit"),
    ("Workglow's RateLimiter", "node Workglow RateLimiter, memory: most", "node Workglow RateLimiter, memory: admit"),
    ("governor", "governor, most starts", "governor admit, monotonic clock"),
]  # fmt: skip


def short_speed(results: dict) -> str:
    cases = {case["case"]: case for case in results["cases"]}
    rows = []
    for what, name, other_name, other in SHORT:
        if name in cases and other in cases:
            ours, theirs = cases[name], cases[other]
            ratio = ratio_of(ours["ns"] / theirs["ns"])
            rows.append(
                [what, time_of(ours["ns"]), time_of(ours.get("p999")), other_name, time_of(theirs["ns"]), ratio]
            )
    head = ["an admission", "median", "p99.9", "compared with", "median", "ratio"]
    return f"{origin(results)}.\n\n{table(head, rows)}\n"


def short_peers(results: dict) -> str:
    cases = {case["case"]: case for case in results["cases"]}
    rows = []
    for who, hammered, timed in PEERS:
        if hammered in cases and timed in cases:
            most, limit = cases[hammered]["most"], cases[hammered]["limit"]
            rows.append([who, f"**{most}**" if most <= limit else str(most), time_of(cases[timed]["ns"])])
    return table(["limiter", "most starts in 1 s, limit 100", "an admission"], rows) + "\n"


# The README's generated parts, by the name in their marks.
PARTS = {"speed": short_speed, "peers": short_peers}


def write_short(results: dict, readme: Path) -> None:
    text = readme.read_text()
    for name, make in PARTS.items():
        begin, end = f"<!-- bench {name}: begin -->\n", f"<!-- bench {name}: end -->\n"
        if text.count(begin) != 1 or text.count(end) != 1:
            sys.exit(f"{readme.name} needs one line {begin.strip()!r} and one line {end.strip()!r} after it")
        before, rest = text.split(begin)
        text = before + begin + make(results) + end + rest.split(end)[1]
    readme.write_text(text)


def show(results: dict) -> None:
    """Prints the figures and the targets."""
    print(f"{'':64}{'ns':>12}{'least':>12}{'p99':>12}{'p99.9':>12}{'CPU':>10}")
    for case in results["cases"]:
        if case.get("ns") is not None:
            figures = [case["ns"], case.get("least"), case.get("p99"), case.get("p999"), case.get("cpu_ns")]
            cells = ["" if figure is None else f"{figure:,.0f}" for figure in figures]
            print(
                f"{case['case']:64}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, [12, 12, 12, 12, 10]))
            )
    print("\nThe most starts in any window:")
    for name, who, limit, most in most_of(results):
        print(f"{name.strip('*'):64}{most:>6} of {limit:6}{who}")
    print("\nTargets:")
    for what, promised, measured, verdict, _ in judged(results):
        print(f"{verdict:5} {what}: {promised}; {measured}")


if __name__ == "__main__":
    built = HERE.parent / "target/bench"
    if not (built / "results.json").exists():
        sys.exit("There is no target/bench/results.json: run `make bench` first.")
    measured = json.loads((built / "results.json").read_text())
    show(measured)
    write(measured, built / "docs")
