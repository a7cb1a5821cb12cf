#!/usr/bin/env python3
"""What s2s-check --format sarif writes against the published schema (sarif-schema-2.1.0.json.gz, errata 01, unchanged from
https://docs.oasis-open.org/sarif/sarif/v2.1.0/), and what the schema cannot say: rule indices, places within their files, one
fingerprint a result. The inputs are the configs of this folder, each case of cases.txt (with the options that make its rule
fire), files that cannot be read, names and scripts that are not UTF-8.

Exit status 0 all hold, 1 one does not, 77 without the Python package jsonschema.
"""
import gzip
import json
import os
import subprocess
import sys
import tempfile
import urllib.parse

try:
    import jsonschema
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.abspath(os.environ.get("S2S_BIN", os.path.join(HERE, "../../../bin"))) + "/s2s-check"
OPTIONS = {"world": "--world-size", "gpus": "--gpus-per-node", "device": "--device", "env": "--env", "upstream": "--upstream"}


def cases():
    """Arguments of s2s-check, one list for each case of cases.txt that needs no more than options and --set."""
    with open(os.path.join(HERE, "cases.txt"), encoding="utf-8") as f:
        lines = [line.strip() for line in f if line.strip() and not line.startswith("#")]
    for line in lines:
        _, dialect, fires = line.split(" | ")[:3]
        args, name = [], dialect
        for token in fires.split():
            option, _, value = token[1:].partition("=")
            if token[0] != "@":
                args += ["--set", token]
            elif option in OPTIONS:
                args += [OPTIONS[option], value]
            elif option == "model":
                args += ["--model-config", os.path.join(HERE, value)]
            elif option == "path":
                name = value
        yield args + [os.path.join(HERE, name + ".yaml")]


def run(args):
    result = subprocess.run([PROGRAM, "--format", "sarif", *args], capture_output=True)
    return json.loads(result.stdout) if result.stdout else None


def faults_of(log, schema, rules_seen):
    """rules_seen: JSON texts of rule lists that were validated already; they are long and seldom differ."""
    run_ = log["runs"][0]
    rules = run_["tool"]["driver"]["rules"]
    if json.dumps(rules) in rules_seen:
        run_["tool"]["driver"]["rules"] = []
    rules_seen.add(json.dumps(rules))
    for error in schema.iter_errors(log):
        yield "/".join(map(str, error.path)) + ": " + error.message[:200]
    ids = [rule["id"] for rule in rules]
    if len(set(ids)) != len(ids):
        yield "a rule is listed twice"
    fingerprints = [result["partialFingerprints"]["s2sCheck/v1"] for result in run_["results"]]
    if len(set(fingerprints)) != len(fingerprints):
        yield "two results have one fingerprint"
    for result in run_["results"]:
        place = result["locations"][0]["physicalLocation"]
        path, region = urllib.parse.unquote_to_bytes(place["artifactLocation"]["uri"]), place["region"]
        if rules[result["ruleIndex"]]["id"] != result["ruleId"]:
            yield "ruleIndex of " + result["ruleId"]
        if os.path.isfile(path):
            with open(path, "rb") as f:
                lines = f.read().split(b"\n")
            # a parser that misses something at the end points behind the last line
            if region["startLine"] > len(lines) or region["startColumn"] > len(lines[region["startLine"] - 1]) + 1:
                yield "%s points outside of %s: %s" % (result["ruleId"], path, region)
        elif path not in (b"absent.yaml", b"-", b"command%20line", b"command line"):
            yield "no such file: %r" % path


def awkward(folder):
    """Files that are hard to name, to read or to point into."""
    with open(os.path.join(HERE, "s2s.yaml"), "rb") as f:
        good = f.read()
    files = {
        b"broken.yaml": b"a: [1,\nb: 2\n",
        b"deep.yaml": b"[" * 5000,
        b"bytes.sh": b"#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 3\xff --optimizer \xe9\xff\n",
        b"b\xffd %41#?.yaml": good.replace(b"keep: 2", b"keep: 0"),
        "größe.yaml".encode(): good.replace(b"keep: 2", "note: ü, keep: 0".encode()),
        b"twice.yaml": good + b"seed: 2\nseed: 2\n",
    }
    for name, text in files.items():
        with open(os.path.join(folder.encode(), name), "wb") as f:
            f.write(text)
    return [*files, b"absent.yaml"]


def main():
    with gzip.open(os.path.join(HERE, "sarif-schema-2.1.0.json.gz")) as f:
        schema = json.load(f)
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    schema = validator(schema, format_checker=validator.FORMAT_CHECKER)
    n_logs = n_results = n_faults = 0
    rules_seen = set()
    with tempfile.TemporaryDirectory() as folder:
        awkward_files = awkward(folder)
        os.chdir(folder)
        for args in [awkward_files, [HERE], *cases()]:
            log = run(args)
            if log is None:
                continue  # an option of the case that only the unit test gives
            n_logs += 1
            n_results += len(log["runs"][0]["results"])
            for fault in faults_of(log, schema, rules_seen):
                print("%s: %s" % (args, fault))
                n_faults += 1
        # the check itself can fail
        log = run(awkward_files)
        log["runs"][0]["results"][0]["level"] = "fatal"
        log["runs"][0]["results"][1]["locations"][0]["physicalLocation"]["region"]["startLine"] = 0
        if len(list(schema.iter_errors(log))) != 2:
            print("the schema took a damaged log")
            n_faults += 1
    print("check_sarif: %d logs, %d results, %d faults" % (n_logs, n_results, n_faults))
    return 1 if n_faults or n_results < 300 else 0


if __name__ == "__main__":
    sys.exit(main())
