#!/usr/bin/env python3
"""Mutation testing of the code that is trusted: changes one token or drops one statement at a time and runs a crate's tests.

usage: mutants.py FILE.rs CRATE [CARGO TEST ARGUMENTS]

A mutant that the tests do not notice is printed; a mutant that does not compile does not count. Run it in a clone of its
own: it changes FILE.rs and restores it.
"""

import re
import subprocess
import sys

SWAPS = [
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" == ", " != "),
    (r" != ", " == "),
    (r" && ", " || "),
    (r" \|\| ", " && "),
    (r"\bis_none_or\(", "is_some_and("),
    (r"\bis_some_and\(", "is_none_or("),
    (r"\.any\(", ".all("),
    (r"\.all\(", ".any("),
    (r" \+ 1\b", ""),
    (r" - 1\b", ""),
    (r"(?<=[ (|])!(?=[a-z])", ""),
    (r"\bsaturating_add\(", "wrapping_add("),
    (r"\bchecked_add\(([^()]*(?:\([^()]*\))?[^()]*)\)", r"wrapping_add(\1).into()"),
    (r"\.is_empty\(\)", ".is_empty() == false"),
    (r"\bcontinue;", ""),
    (r"^( *)return Err\(.*\);$", r"\1"),
]

# A statement of one line that checks or records something.
STATEMENT = re.compile(r"^ +(errors\.(push|extend)\(.*\);|check_\w+\(.*\);|require\(.*\);|.*for_each\(.*check_.*\);)$")


def mutants(lines):
    """Pairs of a line number and its replacement."""
    for number, line in enumerate(lines):
        if line.strip() == "#[cfg(test)]":
            return
        if line.strip().startswith(("//", "use ", "#[error", "pub fn", "fn ")):
            continue
        for pattern, replacement in SWAPS:
            for found in re.finditer(pattern, line):
                # Texts are not mutated.
                if line[: found.start()].count('"') % 2 == 0:
                    yield number, line[: found.start()] + found.expand(replacement) + line[found.end() :]
        if STATEMENT.match(line):
            yield number, ""


def passes(crate, arguments):
    command = ["cargo", "test", "--release", "-q", "-p", crate, *arguments]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    except subprocess.TimeoutExpired:
        return False, False
    return ran.returncode == 0, "error: could not compile" in ran.stderr


def main():
    path, crate, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
    original = open(path).read()
    lines = original.split("\n")
    killed = survived = invalid = 0
    if not passes(crate, arguments)[0]:
        sys.exit("the tests must pass without a mutant")
    try:
        for number, line in mutants(lines):
            with open(path, "w") as file:
                file.write("\n".join(lines[:number] + [line] + lines[number + 1 :]))
            survives, broken = passes(crate, arguments)
            if broken:
                invalid += 1
            elif survives:
                survived += 1
                print(f"{path}:{number + 1}: survives\n-{lines[number]}\n+{line}", flush=True)
            else:
                killed += 1
    finally:
        with open(path, "w") as file:
            file.write(original)
    print(f"{path}: {killed} of {killed + survived} mutants are noticed; {invalid} do not compile", flush=True)


main()
