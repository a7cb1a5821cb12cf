# Runs s2s-ckpt over checkpoints that lie, of which each must be refused by name, in little time and memory, and with nothing written:
# refused.py LIST LEAST COMMAND... where LIST has lines "NAME<tab>what is said", at least LEAST of them, and {} in a COMMAND is cases/NAME.
# One COMMAND in turn is run for each, or (S2S_LONG is set) all of them; of the cases that take long, one in turn.
import os, resource, subprocess, sys, time

path, least, commands = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
cases = [line.rstrip("\n").split("\t") for line in open(path)]
if len(cases) < least:
    sys.exit("%s: only %d cases" % (path, len(cases)))
if "sanitize" not in os.environ.get("S2S_BIN", ""):  # AddressSanitizer reserves terabytes of addresses
    resource.setrlimit(resource.RLIMIT_AS, (300000 << 10, 300000 << 10))
day = int(time.time()) // 86400


def processor():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def refuse(command, name, text):
    before = processor()
    try:
        made = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20)
    except subprocess.TimeoutExpired:
        return "no end after 20 s"
    said = made.stdout.decode(errors="replace")
    problem = None
    if made.returncode != 1:
        problem = "exit %d" % made.returncode
    elif len(said) > 4000:
        problem = "%d bytes of messages" % len(said)
    elif processor() - before > 2:
        problem = "%.1f s of the processor" % (processor() - before)
    elif "s2s-ckpt: " not in said or "cases/" + name not in said:
        problem = "not named"
    elif text not in said.replace(name, ""):  # many a case is called what must be said of it
        problem = "expected to see: " + text
    else:
        left = [there for there in ("out", "out.s2s-partial", "ran") if os.path.lexists(there)]
        problem = left and "left " + ", ".join(left)
    return problem and "%s: %s" % (problem, said[:2000])


slow = ["pt_keys_of_tuples.pt", "pt_many_floats.pt", "pt_many_buffers.pt", "pt_many_empty.pt", "pt_keys_of_bytes.pt"]
for i, (name, text) in enumerate(cases):
    if name in slow and name != slow[day % len(slow)] and not os.environ.get("S2S_LONG"):
        continue
    for command in commands if os.environ.get("S2S_LONG") else [commands[(i + day) % len(commands)]]:
        words = ["s2s-ckpt"] + [word.replace("{}", "cases/" + name) for word in command.split(" ")]
        problem = refuse(words, name, text)
        if problem:
            sys.exit("%s: %s" % (" ".join(words), problem))
