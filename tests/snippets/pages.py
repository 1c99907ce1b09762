"""Parses the fenced blocks of a Markdown page and the comments around them. See README.md."""

import re
from dataclasses import dataclass, field

FENCE = re.compile(r"^(```+)(.*)$")
COMMENT = re.compile(r"<!--\s*(not run|continues|file|background|prints|before|after)\b:?(.*?)-->", re.DOTALL)
NEEDS_A_VALUE = {"not run": "the reason", "file": "the name", "before": "the code", "after": "the code"}


class BadPage(Exception):
    """A page that cannot be run. The message names the place and the reason."""


@dataclass
class Block:
    """A fenced block, from its line to its end. `lines` also has the hidden code before and after it."""

    page: str
    line: int
    language: str
    lines: dict[int, str]
    end: int
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def where(self):
        return f"{self.page}:{self.line}"

    @property
    def text(self):
        """The block as shown in the page, without hidden code."""
        return "".join(f"{text}\n" for line, text in sorted(self.lines.items()) if self.line < line < self.end)


def program(parts):
    """Returns blocks as one program. Each line keeps its number in the page, so that errors name the page's lines."""
    lines = {n: text for part in parts for n, text in part.lines.items()}
    return "".join(f"{lines.get(n, '')}\n" for n in range(1, max(lines, default=0) + 1))


def blocks(page, text):
    """Returns all fenced blocks of a page, in order."""
    found, comments, source = [], [], text.split("\n")
    at = 0
    while at < len(source):
        if fence := FENCE.match(source[at]):
            end = next((n for n in range(at + 1, len(source)) if source[n].startswith(fence[1])), None)
            if end is None:
                raise BadPage(f"{page}:{at + 1}: a block that is not closed")
            body = {n + 1: source[n] for n in range(at + 1, end)}
            found.append(Block(page, at + 1, fence[2].strip(), body, end + 1))
            take(found[-1], comments)
            comments, at = [], end
        elif source[at].lstrip().startswith("<!--"):
            begin = at
            while "-->" not in source[at]:
                at += 1
                if at == len(source):
                    raise BadPage(f"{page}:{begin + 1}: a comment that is not closed")
            if mark := COMMENT.match("\n".join(source[begin : at + 1]).lstrip()):
                comment = (begin + 1, mark[1], mark[2])
                if mark[1] == "after" and found:
                    take(found[-1], [comment])
                else:
                    comments.append(comment)
        elif source[at].strip() and comments:
            raise BadPage(f"{page}:{comments[0][0]}: “{comments[0][1]}” has no block after it")
        at += 1
    if comments:
        raise BadPage(f"{page}:{comments[0][0]}: “{comments[0][1]}” has no block after it")
    return found


def take(block, comments):
    """Applies the comments before or after a block to it."""
    for line, word, value in comments:
        if word in NEEDS_A_VALUE and not value.strip():
            raise BadPage(f"{block.page}:{line}: “{word}” without {NEEDS_A_VALUE[word]}")
        if word in ("before", "after"):
            block.lines |= {line + n: text for n, text in enumerate(value.split("\n")) if text.strip()}
        block.marks[word] = value.strip()


def files(group):
    """Returns the names of the files that a group of blocks is written to."""
    return {block.marks.get("file") for block in group}


def chains(page, text):
    """Returns the blocks of a page, in groups that share a folder."""
    groups = []
    for block in blocks(page, text):
        if block.marks.keys() & {"continues", "prints"}:
            name = block.marks.get("continues")
            group = next((group for group in reversed(groups) if not name or name in files(group)), None)
            if group is None:
                raise BadPage(
                    f"{block.page}:{block.line - 1}: “{' '.join(block.marks)}” has no matching block before it"
                )
            group.append(block)
        elif block.language != "text":
            groups.append([block])
    return groups
