#!/usr/bin/env python3
"""Follows the table of the ten hops of a gradient, in the README that has it, and fails unless each hop leads to the next:

  | hop | where | what happens |
  |---|---|---|
  | 1 | `models/mlp.cc` `forward_backward` | ... |

"where" cites files and functions in backticks; each function is defined in one of the files. A file may be cited without its
ending (`runtime/session/session` stands for session.h and session.cc), a function with its class (`Session::close()`).
The files of a hop mention a function of the next hop; or "what happens" names in backticks what both hops' files mention.

usage: layering_hops.py [ROOT]
"""
import os
import re
import sys
from pathlib import Path

HOPS = 10
problems = []


def table(readme):
    """The rows of the table, if there is one: the number, and what stands in backticks in the two columns after it."""
    rows, inside = [], False
    for line in readme.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif [cell.lower() for cell in cells[:2]] == ["hop", "where"]:
            inside = True
        elif inside and re.search(r"\d", cells[0]):
            rows.append((int(cells[0]), *([re.sub(r"\s", "", cited) for cited in re.findall(r"`([^`]*)`", cell)] for cell in cells[1:3])))
    return rows


def plain(function):
    """Session::close() -> close"""
    return re.split(r"::|\.", function.split("(")[0])[-1]


def uncommented(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)


def defines(text, name):
    """Whether text has the parameters and then the body of a function of that name."""
    for start in re.finditer(rf"\b{re.escape(name)}\s*\(", text):
        depth, end = 1, start.end()
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if re.match(r"\s*((const|noexcept|override|final)\b\s*|->[^{};]*)*(\{|:\s*\w+[({])", text[end:]):
            return True
    return False


def mentions(text, name):
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


class Hop:
    def __init__(self, number, where, what):
        self.number, self.what = number, [plain(cited) for cited in what]
        self.functions = [plain(cited) for cited in where if "/" not in cited]
        self.files, self.text = [], ""
        for cited in where:
            if "/" in cited:
                found = [Path(cited + ending) for ending in ("", ".h", ".cc", ".cu") if Path(cited + ending).is_file()]
                if not found:
                    problems.append(f"hop {number}: there is no file {cited}")
                self.files += found
        self.text = "\n".join(uncommented(file.read_text()) for file in self.files)
        if not self.functions or not self.files:
            problems.append(f"hop {number}: cites no file, or no function, in backticks")
        for name in self.functions if self.files else []:
            if not defines(self.text, name):
                problems.append(f"hop {number}: {name} is not defined in {' '.join(map(str, self.files))}")

    def leads_to(self, other):
        return (any(mentions(self.text, name) for name in other.functions) or
                any(mentions(self.text, name) and mentions(other.text, name) for name in self.what))


def main(arguments):
    os.chdir(arguments[0] if arguments else Path(__file__).parent.parent.parent)
    readmes = {readme: table(readme) for readme in sorted(Path(".").glob("README.md")) + sorted(Path(".").glob("[!b.]*/README.md"))}
    readmes = {readme: rows for readme, rows in readmes.items() if rows}
    if len(readmes) != 1:
        problems.append(f"{len(readmes)} tables of hops in the READMEs, one is meant to be there")
    for readme, rows in readmes.items():
        hops = [Hop(*row) for row in rows]
        if [hop.number for hop in hops] != list(range(1, HOPS + 1)):
            problems.append(f"{readme} has the hops {' '.join(str(hop.number) for hop in hops)} instead of 1 to {HOPS}")
        for hop, following in zip(hops, hops[1:]):
            if not hop.leads_to(following):
                problems.append(f"hop {hop.number} does not lead to hop {following.number}: it mentions none of {' '.join(following.functions)}, "
                                f"and no name in backticks under \"what happens\" is in the files of both")
    print("\n".join(problems) if problems else f"each of the {HOPS} hops leads to the next")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
