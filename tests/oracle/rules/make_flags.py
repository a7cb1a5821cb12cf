"""Writes lib/rules/flags_mlm.c: the flags that checkouts of Megatron-LM know, for "did you mean".

    make_flags.py CHECKOUT... > lib/rules/flags_mlm.c

Several checkouts are several releases: what one of them had is no slip of the pen. Every add_argument of
the repository counts, every field of its config classes (these become flags, with
no- and disable- where they are on by default), and what its own test configs use.
"""
import ast
import pathlib
import re
import sys
import textwrap


def flags_of_python(path):
    try:
        tree = ast.parse(path.read_text(errors="replace"))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            yield from (a.value for a in node.args
                        if isinstance(a, ast.Constant) and str(a.value).startswith("--"))
        elif isinstance(node, ast.Constant) and re.fullmatch(r"--[a-z0-9][a-z0-9_-]+", str(node.value)):
            yield node.value
        elif isinstance(node, ast.ClassDef) and any("dataclass" in ast.dump(d)
                                                    for d in node.decorator_list):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    on = isinstance(field.value, ast.Constant) and field.value.value is True
                    yield from ("--" + p + field.target.id
                                for p in (("", "no_", "disable_") if on else ("",)))


def flags_of_yaml(path):
    return re.findall(r"^ +(--[a-z0-9][A-Za-z0-9_-]*)\s*:", path.read_text(errors="replace"), re.M)


def add_checkout(flags, root):
    for part in ("megatron", "examples", "tasks", "tools", "pretrain_*.py", "*.py"):
        for path in root.glob(part if part.endswith(".py") else part + "/**/*.py"):
            flags.update(flags_of_python(path))
    for path in (root / "tests" / "functional_tests").rglob("model_config.yaml"):
        flags.update(flags_of_yaml(path))


def main():
    flags = set()
    for folder in sys.argv[1:]:
        add_checkout(flags, pathlib.Path(folder))
    names = sorted({f[2:].replace("-", "_") for f in flags if re.fullmatch(r"--[a-zA-Z0-9][a-zA-Z0-9_-]+", f)})
    print("/* Flags of Megatron-LM and its programs, sorted; written by tests/oracle/rules/make_flags.py. */")
    print('#include "lib/rules/rules_internal.h"\n')
    print("// clang-format off")
    print("const char *const rules_mlm_flags[] = {")
    print(textwrap.fill(", ".join(f'"{name}"' for name in names) , 98,
                        initial_indent="    ", subsequent_indent="    "))
    print("};\n// clang-format on\n")
    print("const size_t rules_n_mlm_flags = sizeof rules_mlm_flags / sizeof *rules_mlm_flags;")


main()
