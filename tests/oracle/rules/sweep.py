#!/usr/bin/env python3
"""s2s-check over folders of public configs: no rule of severity error may fire on what its trainer runs.

    sweep.py [--program bin/s2s-check] [--allow known.txt] FOLDER...

Prints how many files of each dialect there are, how often each rule fires, a warning that fires on more than a
twentieth of a dialect's files, and every error. Exit status 1 if an error is not in the list of files that are known
to be broken where they come from (lines: end of the path | rule | reason), or if a file cannot be read, crashes the
program or takes it a second.
"""
import argparse
import collections
import json
import os
import subprocess
import sys

OFTEN = 0.05


def known_errors(path):
    known = []
    with open(path, encoding="utf-8") as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                end, rule, reason = (part.strip() for part in line.split("|", 2))
                known.append((end, rule, reason))
    return known


def check(program, folder):
    """The reports of a folder, and what the program said about files it could not read."""
    run = subprocess.run([program, "--json", folder], capture_output=True, text=True, timeout=600)
    if run.returncode < 0:
        sys.exit(f"{program} {folder}: killed by signal {-run.returncode}")
    reports = json.loads(run.stdout)["files"] if run.stdout else []
    return reports, [line for line in run.stderr.splitlines() if line]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=os.path.join(here, "../../../bin/s2s-check"))
    parser.add_argument("--allow", default=os.path.join(here, "known.txt"))
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    args = parser.parse_args()

    known = known_errors(args.allow)
    n_files, fired = collections.Counter(), collections.defaultdict(set)
    errors, unread = [], []
    for folder in args.folders:
        reports, said = check(args.program, folder)
        unread += said
        for report in reports:
            if not report.get("dialect"):
                continue
            n_files[report["dialect"]] += 1
            for finding in report["findings"]:
                fired[report["dialect"], finding["severity"], finding["rule"]].add(report["path"])
                if finding["severity"] == "error":
                    errors.append((report["path"], finding))

    for dialect, n in sorted(n_files.items()):
        print(f"{dialect}: {n} files")
    for (dialect, severity, rule), paths in sorted(fired.items()):
        share = len(paths) / n_files[dialect]
        mark = " often" if severity == "warning" and share > OFTEN else ""
        print(f"  {dialect:4}{severity:8}{rule:13}{len(paths):5}  {100 * share:5.1f} %{mark}")
    n_new = 0
    for path, finding in errors:
        reason = next((r for end, rule, r in known if path.endswith(end) and rule == finding["rule"]), None)
        n_new += reason is None
        print(f"{path}:{finding['line']}: {finding['rule']}: {finding['message']}"
              + (f"\n    known: {reason}" if reason else ""))
    for line in unread:
        print(line)
    print(f"{sum(n_files.values())} files, {len(errors)} errors, {n_new} not known, {len(unread)} not read")
    return 1 if n_new else 0


if __name__ == "__main__":
    sys.exit(main())
