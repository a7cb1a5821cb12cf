"""Reads the machine code of kernels, with no GPU at hand.

lint.py compile FILE.cu ARCH OUT: compiles the file for ARCH (80, 90a, ..; ptx: by way of PTX for compute_80, assembled for a GPU of later days, as a driver
does) and writes to OUT a line for each kernel: its architecture, registers, stack, bytes spilled, loads and stores of local memory, what matrix and copy
instructions it has, and its name. NVCC, CUOBJDUMP, NVCCFLAGS name other programs and flags.

lint.py judge TABLE OUT..: prints these lines in order of names. Status 1 where a kernel spills, has local memory that TABLE does not allow, lacks an
instruction that TABLE wants, or has matrix instructions and no line in TABLE. A line of TABLE is a pattern of whole names, and the instructions or
`local=N` bytes of stack that it may have; a line of no kernel is an error where all files were compiled (--all).
"""
import os
import re
import subprocess
import sys
import tempfile

PTX_GPU = "120a"  # what assembles the PTX: not one of those that have code of their own
KINDS = ("HMMA", "HGMMA", "LDSM", "LDGSTS", "UTMALDG", "UBLKCP", "SYNCS")


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def plain_names(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.split("\n")
    # without the type it returns and its arguments, which stand after the name and its template's
    return {name: re.sub(r"\((?!anonymous)[^()]*\)$", "", re.sub(r"^void ", "", plain)).replace("(anonymous namespace)::", "") for name, plain in zip(names, text)}


def compile_file(source, arch, out):
    nvcc = os.environ.get("NVCC") or "nvcc"
    flags = ["-std=c++17", "-O3", "-I.", *os.environ.get("NVCCFLAGS", "").split()]
    with tempfile.TemporaryDirectory() as folder:
        cubin = folder + "/x.cubin"
        deps = ["-MMD", "-MP", "-MF", out + ".d", "-MT", out]
        if arch == "ptx":
            run(nvcc, *flags, *deps, "-arch=compute_80", "-ptx", "-o", folder + "/x.ptx", source)
            log = run(nvcc, "-arch=sm_" + PTX_GPU, "-cubin", "-Xptxas", "-v", *os.environ.get("NVCCFLAGS", "").split(), "-o", cubin, folder + "/x.ptx")
        else:
            log = run(nvcc, *flags, *deps, "-arch=sm_" + arch, "-cubin", "-Xptxas", "-v", "-o", cubin, source)
        code = run(os.environ.get("CUOBJDUMP") or "cuobjdump", "--dump-sass", cubin)
    # wgmma that ptxas does one by one, as its registers or its way through the code do not suit it
    if serial := [line for line in log.split("\n") if "Potential Performance Loss" in line]:
        sys.exit("\n".join(serial))
    kernels, at = {}, None
    for line in log.split("\n"):
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            at = kernels[found[1]] = {"regs": 0, "stack": 0, "spilled": 0, "local": 0, "ops": {}}
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if at is not None:
                at["stack"], at["spilled"] = int(found[1]), int(found[2]) + int(found[3])
        elif found := re.search(r"Used (\d+) registers", line):
            at["regs"] = int(found[1])
            at = None
    seen, counted = set(), re.compile(rf"\s+/\*[0-9a-f]+\*/\s+(?:@!?\w+ )?((?:LDL|STL|{'|'.join(KINDS)})\b[\w.]*)")
    for line in code.split("\n"):
        if "/*" not in line and (found := re.search(r"Function : (\w+)", line)):
            at = kernels.get(found[1])
            seen.add(found[1])
        elif at is not None and (found := counted.match(line)):
            op = found[1]
            if re.match(r"(LDL|STL)\b", op):
                at["local"] += 1
            else:
                at["ops"][op] = at["ops"].get(op, 0) + 1
    if missing := set(kernels) - seen:
        sys.exit(f"{source}: no machine code of {' '.join(missing)}")
    names = plain_names(list(kernels))
    with open(out + ".new", "w") as f:
        for name, one in kernels.items():
            ops = ",".join(f"{op}:{n}" for op, n in sorted(one["ops"].items())) or "-"
            print(f"sm_{arch}" if arch != "ptx" else "ptx", one["regs"], one["stack"], one["spilled"], one["local"], ops, names[name], file=f)
    os.replace(out + ".new", out)


def read_table(path):
    lines = []
    for number, line in enumerate(open(path), 1):
        words = line.split("#")[0].split()
        if words:
            lines.append({"at": f"{path}:{number}", "pattern": re.compile(words[0].replace("~", " ")), "wants": words[1:], "used": False})
    return lines


def judge_kernel(table, arch, stack, spilled, local, ops, name):
    """What is wrong with it."""
    lines = [line for line in table if line["pattern"].fullmatch(name)]
    wrong, allowed, counted = [], 0, False
    if spilled:
        wrong.append(f"spills {spilled} bytes")
    for line in lines:
        line["used"] = True
        for want in line["wants"]:
            want, _, archs = want.partition("@")
            if archs and arch not in archs.split(","):
                continue
            if want.startswith("local="):
                allowed = int(want[6:])
            else:
                counted = True
                if not re.search(rf"(^|,){re.escape(want)}[.\w]*:", ops):
                    wrong.append(f"has no {want} ({line['at']})")
    if (local or stack) and stack > allowed:
        wrong.append(f"has {stack} bytes of local memory, with {local} loads and stores of it")
    if re.search(r"(^|,)HG?MMA", ops) and not counted:
        wrong.append(f"has matrix instructions and no line in the table: {ops}")
    return [f"{arch}: {name} {what}" for what in wrong]


def judge(table_path, files, is_all):
    table, wrong, rows = read_table(table_path), [], []
    for path in files:
        for line in open(path):
            arch, regs, stack, spilled, local, ops, name = line.rstrip("\n").split(" ", 6)
            rows.append((name, arch, f"{arch:7} {regs:>4} registers {stack:>5} stack {spilled:>5} spilled  {ops if ops != '-' else '':1} {name}"))
            wrong += judge_kernel(table, arch, int(stack), int(spilled), int(local), ops, name)
    for _, _, text in sorted(rows):
        print(text)
    if is_all:
        wrong += [f"{line['at']}: no kernel has such a name" for line in table if not line["used"]]
    print(f"{len(rows)} kernels of {len(files)} files and architectures, {len(wrong)} faults", file=sys.stderr)
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        compile_file(*sys.argv[2:5])
    else:
        rest = [arg for arg in sys.argv[2:] if arg != "--all"]
        sys.exit(judge(rest[0], rest[1:], "--all" in sys.argv))
