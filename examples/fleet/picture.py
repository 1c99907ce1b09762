"""Draws the run as a self-contained SVG, written as text."""

from pathlib import Path

from evidence import SECOND, Start, rolling_count

NAMES = {"celery": "Celery (Python)", "node": "Node", "c": "C"}

WIDTH, LEFT, RIGHT = 960, 150, 30
COUNT_TOP, COUNT_HEIGHT = 92, 150
LANES_TOP, LANE_HEIGHT = 276, 40

# The panel has its own background, so its colours suit light and dark pages.
STYLE = """
  .panel { fill: #ffffff; stroke: #d0d7de }
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 18px; font-weight: 600 }
  .quiet { fill: #59636e }
  .end { text-anchor: end }
  .middle { text-anchor: middle }
  .grid { stroke: #d0d7de }
  .limit { stroke: #bc4c00; stroke-width: 1.5; stroke-dasharray: 5 4 }
  .limit-text { fill: #bc4c00 }
  .count { fill: #8c959f; fill-opacity: .25; stroke: #59636e }
  .celery { fill: #1a7f37 } .node { fill: #0969da } .c { fill: #8250df }
  .gone { fill: #cf222e; fill-opacity: .12 }
  .kill { stroke: #cf222e; stroke-width: 2 } .above { stroke-width: 1; stroke-dasharray: 2 3 }
  .kill-text { fill: #cf222e }
  @media (prefers-color-scheme: dark) {
    .panel { fill: #0d1117; stroke: #3d444d }
    text { fill: #f0f6fc }
    .quiet { fill: #9198a1 }
    .grid { stroke: #3d444d }
    .limit { stroke: #f0883e } .limit-text { fill: #f0883e }
    .count { stroke: #9198a1 }
    .celery { fill: #3fb950 } .node { fill: #58a6ff } .c { fill: #bc8cff }
    .gone { fill: #f85149; fill-opacity: .2 }
    .kill { stroke: #f85149 } .kill-text { fill: #f85149 }
  }
"""


def draw(
    path: Path, starts: list[Start], *, limit: int, window: int, seconds: float, go: int, killed: str, killed_at: int,
    back_at: int | None, most: int,
) -> None:  # fmt: skip
    """Writes the SVG. `window` and the instants `go`, `killed_at` and `back_at` (or None) are in ns."""
    end = go + seconds * SECOND
    lanes_bottom = LANES_TOP + LANE_HEIGHT * len(NAMES)
    height = lanes_bottom + 50
    out: list[str] = []

    def x(t: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * (min(t, end) - go) / (end - go):.1f}"

    def y(count: int) -> str:
        return f"{COUNT_TOP + COUNT_HEIGHT * (1 - count / (limit * 1.15)):.1f}"

    def text(left: float | str, top: float | str, content: object, style: str = "") -> None:
        out.append(f'<text x="{left}" y="{top}" class="{style}">{content}</text>')

    def line(x1: float | str, y1: float | str, x2: float | str, y2: float | str, style: str) -> None:
        out.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{style}"/>')

    span = f"{window / SECOND:g} s"
    text(24, 36, f"{limit} starts per {span}, shared by Celery, Node and C", "title")
    text(24, 60, f"{len(starts)} starts in {seconds:g} s · at most {most} in any window of {span}", "quiet")

    for second in range(int(seconds) + 1):
        at = x(go + second * SECOND)
        line(at, COUNT_TOP, at, lanes_bottom, "grid")
        text(at, lanes_bottom + 20, f"{second} s", "quiet middle")

    # Upper part: the starts in the window that ends here.
    base = y(0)
    corners, before = [f"M{x(go)},{base}"], base
    for t, count in rolling_count(starts, window):
        if t > end:
            break
        corners.append(f"L{x(t)},{before} L{x(t)},{y(count)}")
        before = y(count)
    corners.append(f"L{x(end)},{before} L{x(end)},{base} Z")
    out.append(f'<path d="{" ".join(corners)}" class="count"/>')
    line(LEFT, y(limit), WIDTH - RIGHT, y(limit), "limit")
    text(LEFT - 10, float(y(limit)) + 4, f"limit {limit}", "limit-text end")
    text(LEFT - 10, float(base) + 4, 0, "quiet end")
    text(LEFT - 10, COUNT_TOP + COUNT_HEIGHT / 2, f"in the last {span}", "quiet end")

    # Lower part: each member's starts on its own line.
    for lane, (member, name) in enumerate(NAMES.items()):
        top = LANES_TOP + LANE_HEIGHT * lane
        middle = top + LANE_HEIGHT / 2
        own = [start for start in starts if start.member == member]
        text(LEFT - 10, middle - 1, name, "end")
        text(LEFT - 10, middle + 14, f"{len(own)} starts", "quiet end")
        line(LEFT, middle, WIDTH - RIGHT, middle, "grid")
        if member == killed:
            width = float(x(back_at or end)) - float(x(killed_at))
            out.append(
                f'<rect x="{x(killed_at)}" y="{top + 3}" width="{width:.1f}" height="{LANE_HEIGHT - 6}" class="gone"/>'
            )
        for start in own:
            left = float(x(start.b)) - 1
            out.append(f'<rect x="{left:.1f}" y="{middle - 11}" width="2" height="22" class="{member}"/>')
        if member == killed:
            line(x(killed_at), top + 1, x(killed_at), top + LANE_HEIGHT - 1, "kill")
    text(x(killed_at), LANES_TOP - 10, f"{NAMES[killed]} killed and replaced", "kill-text middle")
    line(x(killed_at), LANES_TOP - 5, x(killed_at), LANES_TOP + LANE_HEIGHT * list(NAMES).index(killed), "kill above")

    body = "\n".join(out)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{limit} starts per {span}: at most {most} in any window">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8" class="panel"/>\n{body}\n</svg>\n'
    )
