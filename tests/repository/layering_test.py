#!/usr/bin/env python3
"""Holds every source file to the table rooms.txt, and to what the code's style rules out.

usage: layering_test.py [ROOT [BUILD]]    prints one line per violation: FILE:LINE: what is wrong
       layering_test.py --rows FOLDER     prints the rows of a floor (runtime, ops, ...) for its README

Includes are read from the sources under ROOT; symbols from the object files of BUILD, which compile_commands.json lists.
An object file may use only what rooms define that its room may open, or what a public header declares.
"""
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

FLOORS = ("runtime", "ops", "models", "apps", "bench")
PUBLIC = "runtime/include/kolo"
TYPES = "runtime/types"
GUARDED = {"<mpi.h>": re.compile(r"mpi\.h"), "<cuda>": re.compile(r"(cuda|cub/|cublas|cudnn).*"), "<nccl>": re.compile(r"nccl.*\.h")}
LIBRARIES = {"<mpi.h>": re.compile(r"P?MPI_[A-Z]\w*"), "<cuda>": re.compile(r"(cuda|cublas|cudnn)[A-Z]\w*"), "<nccl>": re.compile(r"nccl[A-Z]\w*")}
# The files that open a library at run time.
LOADERS = {"ops/host/xpmem.cc", "runtime/world/no_mpi.cc", "ops/nccl/nccl.cc", "ops/gpu/gpu_cuda.cu", "models/compute/cuda/opened_library.h", "bench/kolo_bench/peers/raw_nccl.cc"}
MAX_ROOMS, MAX_ARROWS, MAX_LINES = 10, 30, 400

violations = []


def violation(where, text):
    violations.append(f"{where}: {text}")


class Table:
    """The rows of rooms.txt, in order: room -> the entries it may open."""

    def __init__(self, path):
        self.rows, self.public_headers = {}, []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.split("#")[0].split()
            if len(words) > 1 and words[1] in ("not", "only"):
                self.public_headers.append((words[0].rstrip("*"), words[1], words[2:]))
            elif words:
                above = set(self.rows)
                room, deep = words[0].removesuffix("/*"), words[0].endswith("/*")
                for entry in words[1:]:
                    if entry not in GUARDED and entry not in above and str(Path(entry).parent) not in above:
                        violation(f"{path.name}:{number}", f"{room} opens {entry}, which is no room above it")
                self.rows[room] = (words[1:], deep)

    def room_of(self, file):
        folder = str(Path(file).parent)
        if folder in self.rows:
            return folder
        return next((room for room, (_, deep) in self.rows.items() if deep and folder.startswith(room + "/")), None)

    def opens(self, room, header):
        """Whether a room may include a header of ours, named by its path from the root."""
        other = self.room_of(header)
        entries = self.rows[room][0]
        return (other in (room, *entries) or header in entries or
                other == TYPES and room.startswith(("ops", "runtime")) and room != PUBLIC)

    def may_include_public(self, room, name):
        for floor, rule, names in self.public_headers:
            if (room + "/").startswith(floor):
                listed = any(name == entry or name.startswith(entry + "/") for entry in names)
                if listed != (rule == "only"):
                    return False
        return True

    def text(self, room):
        return " ".join(self.rows[room][0]) or "-"


def sources(floors):
    for floor in floors:
        yield from sorted(path for path in Path(floor).rglob("*") if path.suffix in (".h", ".c", ".cc", ".cu", ".cuh"))


def check_source(table, path, arrows):
    name = str(path)
    room = table.room_of(name)
    if room is None:
        violation(name, f"is in no room of {TABLE}")
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = f"{name}:{number}"
        if re.match(r"\s*#\s*include", line):
            check_include(table, room, path, where, line, arrows)
        if name.startswith(("runtime", "models", "apps")) and path.suffix in (".cc", ".cu"):
            if re.match(r"\s*#\s*(if|ifdef|ifndef|elif|else)\b", line):
                violation(where, "conditional compilation; let the build choose between two files")
        if re.match(r"\s*#\s*define\s", line):
            violation(where, "a macro; use a function, a template or a constant")
        if number == MAX_LINES + 1 and not path.stem.endswith("_table"):
            violation(where, f"more than {MAX_LINES} lines")


def check_include(table, room, path, where, line, arrows):
    found = re.search(r'(["<])([^">]*)[">]', line)
    if not found:
        violation(where, "cannot read this #include")
        return
    quoted, header = found[1] == '"', found[2]
    if ".." in header:
        violation(where, f"includes by a relative path: {header}")
        return
    if quoted and (path.parent / header).exists():
        header = str(path.parent / header)
    if header.startswith("kolo/"):
        if not table.may_include_public(room, header):
            violation(where, f"{room} may not include <{header}>")
    elif header.startswith((*(floor + "/" for floor in FLOORS), "tests/")):
        other = table.room_of(header)
        if not table.opens(room, header):
            violation(where, f"{room} may not include {header} (it may open: {table.text(room)})")
        if room != other:
            arrows.add((room, other))
    else:
        if header == "dlfcn.h" and str(path) not in LOADERS:
            violation(where, f"only {', '.join(sorted(LOADERS))} open libraries")
        guarded = next((entry for entry, pattern in GUARDED.items() if pattern.fullmatch(header)), None)
        if guarded and (guarded not in table.rows[room][0] or room == PUBLIC and not path.stem.endswith("mpi")):
            violation(where, f"{room} may not include <{header}> (it may open: {table.text(room)})")
        elif room == PUBLIC and not guarded and not re.fullmatch(r"[a-z0-9_]+", header):
            if not (path.name == "kolo_c_base.h" and re.fullmatch(r"std(def|int)\.h", header)):
                violation(where, f"a public header includes only <kolo/...> and the standard library: <{header}>")


def check_runtime(table, arrows):
    rooms = [room for room in table.rows if room.startswith("runtime/")]
    if len(rooms) > MAX_ROOMS:
        violation(TABLE, f"runtime has {len(rooms)} rooms, at most {MAX_ROOMS} are meant to be there")
    between = {arrow for arrow in arrows if all(str(end).startswith("runtime/") for end in arrow)}
    if len(between) > MAX_ARROWS:
        violation(TABLE, f"{len(between)} arrows between the rooms of runtime, at most {MAX_ARROWS} are meant to be there")


class Declared:
    """What headers declare, as far as text can tell: (scope, name) of functions and variables, and classes with a body."""

    def __init__(self, headers):
        self.members, self.classes, self.words = set(), set(), set()
        for header in headers:
            text = re.sub(r"//[^\n]*|/\*.*?\*/|^\s*#[^\n]*", " ", header.read_text(), flags=re.DOTALL | re.MULTILINE)
            text = re.sub(r'extern "C"\s*\{', "namespace kolo {", text)
            self.words |= set(re.findall(r"\w+", text))
            self.read(re.sub(r'"(\\.|[^"\\\n])*"', '""', text))

    def read(self, text):
        scopes, statement = [], ""  # of open braces: the class's name, "" for a namespace, None for a body
        for piece in re.split(r"([{};])", text):
            if piece not in ("{", "}", ";"):
                statement = piece
                continue
            named = re.search(r"\b(?:class|struct|union)\s+(?:\[\[\w+\]\]\s*)?(\w+)(?:\s+final)?\s*(?::[^:].*)?$", statement, re.DOTALL)
            if None not in scopes:
                scope = "::".join(filter(None, scopes))
                if re.match(r"\s*friend\b", statement):
                    scope = ""
                for name in re.findall(r"(operator\s*(?:[^\s\w(]+|bool)|~?\w+)\s*(?=[(=\[]|$)", statement):
                    self.members.add((scope, name.replace(" ", "")))
            if piece == "{":
                if re.search(r"\bnamespace\b", statement):
                    scopes.append("")
                elif named and None not in scopes and not re.search(r"\benum\b", statement):
                    scopes.append(named[1])
                    self.classes.add("::".join(filter(None, scopes)))
                else:
                    scopes.append(None)
            elif piece == "}" and scopes:
                scopes.pop()
            statement = ""

    def has(self, symbol):
        """Takes a demangled name. A function's parameters must be public types, too."""
        symbol = re.sub(r"\[abi:\w+\]", "", symbol)
        table = re.match(r"(?:vtable|typeinfo|typeinfo name|VTT|(?:non-)?virtual thunk) (?:for|to) (.*)", symbol)
        scopes, parameters = split_scopes(table[1] if table else symbol)
        scopes = [scope for scope in scopes if scope != "kolo"]
        if table and "::".join(scopes) in self.classes:
            return True
        ours = re.findall(r"kolo::([\w:]+)", parameters)
        return (("::".join(scopes[:-1]), scopes[-1].replace(" ", "")) in self.members and
                all(part in self.words for name in ours for part in name.split("::")))


def split_scopes(symbol):
    """kolo::Session::f(Tensor<a::b>) -> [kolo, Session, f], "(Tensor<a::b>)" """
    name, depth = "", 0
    for i, char in enumerate(symbol):
        if char == "(" and depth == 0 and not name.endswith("operator"):
            return name.split("::"), symbol[i:]
        if name.split("::")[-1].startswith("operator"):
            name += char
            continue
        depth += (char == "<") - (char == ">")
        if depth == 0 and char != ">":
            name += char
    return name.split("::"), ""


def run(*command, stdin=None):
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout


def objects(table, build):
    """Object file -> its room. A unity file is read for the files it joins; they are all of one room."""
    root, found = Path.cwd(), {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        output = Path(entry["directory"]) / words[words.index("-o") + 1]
        joined = [entry["file"]]
        if "/Unity/" in entry["file"] and Path(entry["file"]).exists():
            joined = re.findall(r'#include "(.*)"', Path(entry["file"]).read_text())
        names = [str(Path(file).relative_to(root)) for file in joined if Path(file).is_relative_to(root)]
        names = [name for name in names if name.startswith(FLOORS) and not Path(name).is_relative_to(build.name)]
        rooms = {table.room_of(name) for name in names} - {None}
        if len(rooms) > 1:
            violation(output.name, f"one object file of {len(rooms)} rooms: {', '.join(sorted(rooms))}")
        elif rooms and output.exists():
            found[str(output)] = rooms.pop()
    return found


def check_symbols(table, build):
    rooms = objects(table, build)
    if not rooms:
        violation(str(build), "no object files to look at")
        return 0
    defined, used = {}, {}
    for line in run("nm", "-o", "-P", *rooms).splitlines():
        file, symbol, kind, *_ = re.match(r"(.*?): (\S+) (\S)", line).groups()
        if kind == "U":
            used.setdefault(symbol, set()).add(rooms[file])
        elif kind in "TDBRSGC":
            defined.setdefault(symbol, rooms[file])
    for entry, pattern in LIBRARIES.items():  # whoever else defines them, as a profiler does
        for symbol in filter(pattern.fullmatch, used):
            defined.pop(symbol, None)
            for user in sorted(used[symbol]):
                if entry not in table.rows[user][0]:
                    violation(user, f"uses the symbol {symbol} of {entry} (it may open: {table.text(user)})")
    used = {symbol: users - {defined[symbol]} for symbol, users in used.items() if symbol in defined}
    names = sorted(symbol for symbol, users in used.items() if users)
    plain = dict(zip(names, run("c++filt", stdin="\n".join(names)).splitlines()))
    public = Declared(Path(PUBLIC).rglob("*.h"))
    single = {}
    for symbol in names:
        owner = defined[symbol]
        if public.has(plain[symbol]):
            continue
        for user in sorted(used[symbol]):
            entries = table.rows[user][0]
            if owner in entries or owner == TYPES and user.startswith(("ops", "runtime")):
                continue
            headers = [entry for entry in entries if entry.endswith(".h") and table.room_of(entry) == owner]
            for entry in headers:
                single.setdefault(entry, Declared([Path(entry)]) if Path(entry).exists() else Declared([]))
            if not any(single[entry].has(plain[symbol]) for entry in headers):
                violation(user, f"uses the symbol {plain[symbol]} of {owner} (it may open: {table.text(user)})")
    return len(rooms)


# Words that say that something is unfinished, or that only make sense on one machine or to one author.
UNFIT = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X)\b|not (yet )?imple[m]ented|place[h]older|for[ ]now"
                   r"|(^|[^A-Za-z0-9_.}-])/(home|root|work|farm)/|py[p]i\.|debian[.]org|github[u]sercontent|sub-?[a]gent"
                   r"|\b[i]ssue #?[0-9]", re.IGNORECASE)


def check_words():
    for path in sorted(Path(".").rglob("*")):
        top = path.parts[0]
        if top in (".git", ".cache") or top.startswith("build") or path.name == "LICENSE" or "__pycache__" in path.parts or not path.is_file():
            continue
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, 1):
            if UNFIT.search(line):
                violation(f"{path}:{number}", f"does not belong into the source: {line.strip()}")


def readme_row(table, room):
    return f"`{room}`", " ".join(f"`{entry}`" for entry in table.rows[room][0]) or "-"


def check_readmes(table):
    """A floor's README with a table "| room | ... | may open |" shows the row of each of its rooms, as it is in rooms.txt."""
    for floor in FLOORS:
        readme = Path(floor) / "README.md"
        shown, inside = {}, False
        for number, line in enumerate(readme.read_text().splitlines() if readme.exists() else [], 1):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not line.startswith("|"):
                inside = False
            elif cells[0].lower() == "room" and cells[-1].lower() == "may open":
                inside = True
            elif inside and not cells[0].startswith("-"):
                room = cells[0].strip("`/")
                shown[room] = cells[-1]
                if room not in table.rows:
                    violation(f"{readme}:{number}", f"{room} is no room of {TABLE}")
                elif cells[-1] != readme_row(table, room)[1]:
                    violation(f"{readme}:{number}", f"{room} may open {cells[-1]} here, but {readme_row(table, room)[1]} in {TABLE}")
        missing = [room for room in table.rows if (room + "/").startswith(floor + "/") and room not in shown]
        if readme.exists() and missing:
            violation(readme, f"shows no row of {', '.join(missing)} (see layering_test.py --rows {floor})")


TABLE = "tests/repository/rooms.txt"


def main(arguments):
    root = Path(__file__).resolve().parent.parent.parent
    if arguments[:1] == ["--rows"]:
        table = Table(root / TABLE)
        for room in table.rows:
            if (room + "/").startswith(arguments[1].rstrip("/") + "/"):
                print("| {} | | {} |".format(*readme_row(table, room)))
        return 0
    build = Path(arguments[1]).resolve() if len(arguments) > 1 else None
    os.chdir(arguments[0] if arguments else root)
    table = Table(Path(TABLE))
    arrows, count = set(), 0
    for path in sources(FLOORS):
        check_source(table, path, arrows)
        count += 1
    check_runtime(table, arrows)
    check_readmes(table)
    check_words()
    looked_at = check_symbols(table, build) if build else 0
    for line in violations:
        print(line)
    if not violations:
        print(f"no violations in {count} files and {looked_at} object files")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
