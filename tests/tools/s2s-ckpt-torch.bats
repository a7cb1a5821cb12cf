# Files of torch.save that are unlike those which checkpoints usually are. Every form that PyTorch itself writes is held against
# torch.load in tests/oracle/ckpt/check_torch_files.py.

load common

make() { # Python after `from torch_files import *`
    PYTHONPATH=$ROOT/tests/tools python3 -c "from torch_files import *
$1"
}

@test "what Megatron-Core keeps of the plans of earlier saves is read over" {
    # --ckpt-assume-constant-structure, from a run's second save on
    PYTHONPATH=$ROOT/tests/oracle/ckpt python3 - <<'PY'
from mini_writer import obj, s, write
F, P = "torch.distributed.checkpoint.filesystem", "torch.distributed.checkpoint.planner"
plan = obj(P, "SavePlan", [("items", b"]"), ("storage_data", obj(F, "_StoragePrefix", [("prefix", s("__0_"))])), ("planner_data", b"N"), ("usable", b"\x88")])
write("in", [("w", "float32", (1, 2), [((0, 0), (1, 2), bytes(8))])], common=b"}", plans=b"](" + plan + b"e")
PY
    exits 0 s2s-ckpt verify in
    exits 0 s2s-ckpt convert --to torch_dist in out
    alike "$(s2s-ckpt cat --json in w)" "$(s2s-ckpt cat --json out w)"
}

@test "a view whose numbers are not those of its storage is refused by name" {
    for bit in conj neg; do
        make "save('$bit.pt', {'w': tensor(Storage('0', [1, 2]), [2], {'$bit': True})})"
        exits 1 s2s-ckpt ls $bit.pt
        says "w: tensor at byte"
        says "resolve_$bit()"
        make "save('$bit.pt', {'w': tensor(Storage('0', [1, 2]), [2], {'$bit': False})})"
        exits 0 s2s-ckpt ls $bit.pt
    done
}

@test "a class itself beside tensors is a byte object, also one whose instances are read as dicts" {
    for class in "'argparse', 'Namespace'" "'collections', 'OrderedDict'" "'torch._utils', '_rebuild_tensor_v2'"; do
        make "save('class.pt', {'args': [named($class), tensor(Storage('0', [1, 2]), [2])]})"
        exits 0 s2s-ckpt ls class.pt
        alike "$(cut -f 1,2 <<<"$output")" $'args.1\tF32\nargs.0\tobject'
        exits 0 s2s-ckpt verify class.pt
    done
}

@test "classes that are not data are kept as names, and all are listed: of a torch file and of a common state" {
    classes='Call("signal", "Signals", (15,)), Call("enums", "AttnBackend", (5,)), Call("signal", "Signals", (2,))'
    make "save('w.pt', {'w': tensor(Storage('0', [1, 2]), [2]), 'c': [$classes]})"
    exits 0 s2s-ckpt ls w.pt
    says "warning: w.pt: classes that are not data are kept as names: signal.Signals, enums.AttnBackend"
    cp -r "$ROOT/tests/oracle/ckpt/data/mini_writer" in
    chmod -R u+w in
    make "save('in/iter_0000042/common.pt', {'iteration': 42, 'args': [$classes]})"
    for command in ls verify "convert --to torch_dist"; do
        out=
        [[ "$command" != convert* ]] || out=out
        exits 0 s2s-ckpt $command in $out
        says "warning: common.pt: classes that are not data are kept as names: signal.Signals, enums.AttnBackend"
    done
    # of very many the first
    make "save('in/iter_0000042/common.pt', {'iteration': 42, 'args': [Call('a%d' % i, 'Thing', ()) for i in range(5000)]})"
    exits 0 s2s-ckpt verify in
    says "a0.Thing, a1.Thing, "
    [ ${#output} -lt 1300 ]
    [[ "$output" == *"Thing, .."* ]]
    # of byte objects that are alike the first
    PYTHONPATH=$ROOT/tests/oracle/ckpt python3 -B - <<'PY'
from mini_writer import g, i, tup, write
kept = lambda *of: b"\x80\x02]" + g(*of) + tup([i(5)]) + b"Ra."
write("objects", [("w", "float32", (1,), [((0,), (1,), bytes(4))])], common=b"}",
      objs=[("c/shard_0_1", kept("signal", "Signals")), ("d/shard_0_1", kept("signal", "Signals")), ("e/shard_0_1", kept("enums", "AttnBackend"))])
PY
    for command in verify reshard; do
        out=
        [ $command = verify ] || out=again
        exits 0 s2s-ckpt $command objects $out
        says "warning: c/shard_0_1: classes that are not data are kept as names: signal.Signals"
        says_not "warning: d/"
        says "warning: e/shard_0_1: classes that are not data are kept as names: enums.AttnBackend"
    done
    # and of the ranks' files
    mkdir -p ranks/mp_rank_0{0,1,2}
    for rank in ranks/*; do
        make "save('$rank/model_optim_rng.pt', {'model': {'decoder.final_layernorm.weight': tensor(Storage('0', [1, 2]), [2])}, 'iteration': 7, 'args': [$classes]})"
    done
    for command in ls verify "convert --to torch_dist --merge-ranks"; do
        out=
        [[ "$command" != convert* ]] || out=merged
        exits 0 s2s-ckpt $command ranks $out
        says "warning: mp_rank_00/model_optim_rng.pt: classes that are not data are kept as names: signal.Signals, enums.AttnBackend"
        says_not "warning: mp_rank_01"
    done
}

@test "an array of numpy's floating-point numbers counts as a tensor that is not read" {
    make "
def array(kind, shape, module='numpy._core.multiarray'):
    dtype = Call('numpy', 'dtype', (kind, False, True), (3, '<', None, None, None, -1, -1, 0))
    return Call(module, '_reconstruct', (named('numpy', 'ndarray'), (0,), b'b'), (1, shape, dtype, False, bytes(24)))
w = tensor(Storage('0', [1, 2]), [2])
save('both.pt', {'w': w, 'a': array('f4', (2, 3))})
save('old.pt', {'w': w, 'a': array('f8', (3,), 'numpy.core.multiarray')})
save('only.pt', {'a': array('f2', (3, 4))})
save('others.pt', {'w': w, 'rng': ('MT19937', array('u4', (6,)), 6), 'ids': array('i8', (3,)), 'best': array('f8', ()), 'text': array('O8', (1,))})
save('state.pt', {'w': w, 'optimizer': {'m': array('f4', (6,))}})"
    for file in both old; do
        exits 0 s2s-ckpt convert --to safetensors $file.pt out.safetensors
        says "a: a numpy.ndarray, of which no tensor is read"
        rm out.safetensors
        exits 1 s2s-ckpt convert --strict --to safetensors $file.pt out.safetensors
        says "(--strict)"
    done
    # an empty output would look like success
    exits 1 s2s-ckpt convert --to safetensors only.pt out.safetensors
    says "a is a numpy.ndarray, of which no tensor is read"
    [ ! -e out.safetensors ]
    exits 1 s2s-ckpt verify only.pt
    exits 0 s2s-ckpt convert --strict --to safetensors others.pt out.safetensors
    says_not "of which no tensor is read"
    exits 0 s2s-ckpt convert --strict --to safetensors state.pt out.safetensors
}

@test "an output in which nothing is left is refused" {
    make "
save('words.pt', {'s': 'hello', 'n': [1, 2]})
save('optimizer.pt', {'state': {0: {'exp_avg': tensor(Storage('0', [1, 2]), [2])}}, 'param_groups': [{'lr': .1, 'params': [0]}]})"
    exits 1 s2s-ckpt convert --to safetensors words.pt out
    says "words.pt: no weights"
    exits 1 s2s-ckpt prune optimizer.pt out
    says "optimizer.pt: no weights"
    [ ! -e out ]
    # what is kept is something
    exits 0 s2s-ckpt convert --to torch_dist words.pt out
    exits 0 s2s-ckpt convert --to safetensors optimizer.pt out.safetensors
}

@test "a dtype of torch.distributed.checkpoint's that is not read is named with its tensor" {
    cp -r "$ROOT/tests/oracle/ckpt/data/mini_writer/iter_0000042" in
    sed 's/bfloat16/quint4x2/' "$ROOT/tests/oracle/ckpt/data/mini_writer/iter_0000042/.metadata" >in/.metadata
    exits 1 s2s-ckpt ls in
    says "in: .metadata: decoder.layers.0.mlp.linear_fc1.weight: object at byte"
    says "tensor of an unknown dtype, quint4x2, which is not read"
}

@test "a tensor that is no array of numbers is named, and lost only when that was seen" {
    make "
w = tensor(Storage('0', [1, 2]), [2])
odd = Call('torch._utils', '_rebuild_sparse_tensor', (None, (tensor(Storage('1', [0, 1], 'q', 'LongStorage'), [1, 2]), w, (2,))))
save('sparse.pt', {'w': w, 's': odd})
save('meta.pt', {'w': w, 's': Call('torch._utils', '_rebuild_meta_tensor_no_storage', (None, (2,), (1,), False))})
save('storage.pt', {'w': w, 's': Storage('2', [1, 2])})
save('only.pt', odd)
save('settings.pt', {'w': w, 's': Call('model', 'Settings', (), {'depth': 3})})
save('state.pt', {'w': w, 'optimizer': {'s': odd}})"
    for file in sparse:torch._utils._rebuild_sparse_tensor meta:torch._utils._rebuild_meta_tensor_no_storage storage:storage; do
        exits 0 s2s-ckpt convert --to safetensors "${file%%:*}.pt" out.safetensors
        says "s: a ${file#*:}, of which no tensor is read"
        rm out.safetensors
        exits 1 s2s-ckpt convert --strict --to safetensors "${file%%:*}.pt" out.safetensors
        says "(--strict)"
        [ ! -e out.safetensors ]
    done
    # its bytes are vouched for all the same, or --strict fails
    exits 0 s2s-ckpt verify --strict sparse.pt
    python3 - <<'PY'
import struct, zipfile
raw = bytearray(open("sparse.pt", "rb").read())
archive = zipfile.ZipFile("sparse.pt")
last = [i for i in archive.infolist() if "/data/" in i.filename][-1]
names = sum(struct.unpack("<HH", raw[last.header_offset + 26:last.header_offset + 30]))
raw[last.header_offset + 30 + names] ^= 1
open("flipped.pt", "wb").write(raw)
raw = bytearray(open("sparse.pt", "rb").read())
for at in (last.header_offset + 14, raw.index(last.filename.encode(), archive.start_dir) - 46 + 16):
    raw[at:at + 4] = bytes(4)
open("silent.pt", "wb").write(raw)
PY
    exits 1 s2s-ckpt verify flipped.pt
    says "CRC-32"
    exits 0 s2s-ckpt verify silent.pt
    exits 1 s2s-ckpt verify --strict silent.pt
    says "no manifest, and no checksum of the tensors in 1 object, which are not read (--strict)"
    # of torch_dist the object's name is all that there is
    exits 0 s2s-ckpt convert --json --to torch_dist sparse.pt dist
    says "s2s-ckpt: dist: 1 tensor, "
    says "; left out: the unread tensors of 1 object"
    says_not "1 objects"
    says '"objects": 0, "objects_with_unread_tensors": 1,'
    says '"names": {"s": 1}'
    for to in safetensors torch_dist hf; do
        exits 1 s2s-ckpt convert --to $to only.pt out
        says "value is a torch._utils._rebuild_sparse_tensor"
        says "state_dict()"
        [ ! -e out ]
    done
    for file in settings state; do
        exits 0 s2s-ckpt convert -q --strict --to safetensors $file.pt $file.safetensors
    done
}

@test "an archive without checksums is told of, and read" {
    make "
import struct
save('whole.pt', {'w': tensor(Storage('0', [1, 2]), [2])})
raw = bytearray(open('whole.pt', 'rb').read())
at = -1
while (at := raw.find(b'PK\\1\\2', at + 1)) >= 0:
    raw[at + 16:at + 20] = bytes(4)
open('without.pt', 'wb').write(raw)"
    s2s-ckpt convert -q --to torch_dist whole.pt dist
    for file in whole.pt dist; do
        exits 0 s2s-ckpt ls --sha256 $file
        says_not "without checksums"
        exits 0 s2s-ckpt verify --strict $file
    done
    # the same in a .distcp's item
    python3 - dist/iter_*/__0_0.distcp <<'PY'
import sys
raw = bytearray(open(sys.argv[1], "rb").read())
at = -1
while (at := raw.find(b"PK\1\2", at + 1)) >= 0:
    raw[at + 16:at + 20] = bytes(4)
open(sys.argv[1], "wb").write(raw)
PY
    rm dist/iter_*/s2s-manifest.json
    for file in without.pt dist; do
        for to in safetensors torch_dist; do
            exits 0 s2s-ckpt convert --to $to $file out.$to
            [ "$(grep -c "saved without checksums" <<<"$output")" = 1 ]
            exits 0 s2s-ckpt diff -q whole.pt out.$to
            says_not "without checksums"
            rm -r out.$to
        done
        exits 0 s2s-ckpt verify $file
        says "saved without checksums"
        says "no checksum of 1 tensor"
        exits 1 s2s-ckpt verify --strict $file
        says "no checksum of 1 tensor (--strict)"
    done
}

@test "values that JSON does not have are in torch_dist what they were: bytes, files of them, nan, dtypes" {
    for protocol in 2 3 5; do
        make "
import math
values = {'b': bytes(range(0, 256, 3)), 'empty': b'', 'array': bytearray(b'a\\xff'), 'io': io.BytesIO(b'q\\x80'), 'deep': [(1, {'x': b'deep'})],
          'text': '(4 bytes)', 'nan': math.nan, 'inf': -math.inf, 'long': -2**100, 'dtype': named('torch', 'bfloat16')}
values['io'].seek(1)
save('in.pt', {'w': tensor(Storage('0', [1, 2]), [2]), **values}, protocol=$protocol)"
        exits 0 s2s-ckpt convert --strict --to torch_dist in.pt out
        says_not warning
        exits 0 s2s-ckpt verify out
        python3 - <<'PY'
import glob, io, pickle, re


class Unpickler(pickle.Unpickler):
    def persistent_load(self, _):
        raise LookupError("a tensor")

    def find_class(self, module, name):
        if module.startswith("torch"):
            return "torch." + name
        return super().find_class(module, name)


[path] = glob.glob("out/iter_*/__0_0.distcp")
blob = open(path, "rb").read()
found = []
for m in re.finditer(rb"PK\x03\x04.{22}(..)(..)archive/data\.pkl", blob, re.S):
    start = m.end() + int.from_bytes(m[2], "little")
    try:
        value = Unpickler(io.BytesIO(blob[start:])).load()
        found.append((value.tell(), value.getvalue()) if isinstance(value, io.BytesIO) else value)
    except LookupError:
        pass
want = [bytearray(b"a\xff"), bytes(range(0, 256, 3)), 1, b"deep", "torch.bfloat16", b"", float("-inf"), (1, b"q\x80"), -2**100, float("nan"), "(4 bytes)"]
assert repr(found) == repr(want), found
PY
        rm -r out
    done
}

@test "long: an archive of seventy thousand storages is read" {
    make "
save('many.pt', {'w%d' % i: tensor(Storage(str(i), [i]), [1]) for i in range(70000)})"
    exits 0 s2s-ckpt verify many.pt
    says "70000 tensors"
    exits 0 s2s-ckpt cat --json many.pt w69999
    says 69999
}

@test "bytes that are not kept are named" {
    make "
import os
w = tensor(Storage('0', [1, 2]), [2])
save('large.pt', {'w': w, 'large': bytes(100000), 'small': b'x'})
save('inside.pt', {'w': w, 'inside': Call('model', 'Settings', (), {'x': b'x'}), 'small': b'x'})
os.makedirs('ranks/mp_rank_00')
save('ranks/mp_rank_00/model_optim_rng.pt', {'model': {'w': w}, 'run': [b'x'], 'rng_state': [b'x'], 'iteration': 7})"
    for file in large inside; do
        exits 0 s2s-ckpt convert --to torch_dist $file.pt $file
        says "$file: its bytes are not kept, only their number"
        says_not "small: its"
    done
    exits 0 s2s-ckpt ls ranks
    says "mp_rank_00/run: its bytes are not kept"
    says_not rng_state
}

@test "tensors inside objects have the names of the objects' parts, those of modules the state_dict's" {
    make "
w = [tensor(Storage(str(k), [k]), [1]) for k in range(9)]
inner = Call('model', 'Part', (), {'_parameters': {'w': w[0], 'none': None}, '_buffers': {}, '_modules': {'gone': None}})
net = Call('model', 'Net', (), {'_parameters': {'w': w[1]}, '_buffers': {'kept': w[2], 'passing': w[3]}, '_non_persistent_buffers_set': {'passing'},
                                '_modules': {'part': inner}, 'extra': w[4]})
save('net.pt', net)
save('objects.pt', {'net': net, 'pair': Call('model', 'Pair', (w[5], 2)), 'state': Call('model', 'State', (), {'x': {'y': w[6]}, 'n': 3}),
                    'both': Call('model', 'Slots', (), (None, {'z': w[7]})), 'plain': Call('model', 'Config', (3,), {'depth': 2})})"
    exits 0 s2s-ckpt ls net.pt
    [ "$(cut -f1 <<<"$output" | grep -v warning | sort | xargs)" = "kept part.w w" ]
    exits 0 s2s-ckpt convert -q --strict --to safetensors objects.pt objects.safetensors
    [ "$(s2s-ckpt ls objects.safetensors | cut -f1 | sort | xargs)" = "both.1.z net.kept net.part.w net.w pair.0 state.x.y" ]
    s2s-ckpt ls objects.pt 2>/dev/null | cut -f1 | grep -qx plain
}

@test "dicts of any key that torch reads give names as Python prints the key" {
    make "
w = [tensor(Storage(str(k), [k]), [1]) for k in range(6)]
save('keys.pt', {'a': {(0, 'b'): w[0], True: w[1], None: w[2], 2.5: w[3], -3: w[4], (7,): w[5]}})"
    exits 0 s2s-ckpt ls keys.pt
    [ "$(printf '%s\n' "${lines[@]}" | cut -f1 | sort)" = "$(printf '%s\n' "a.(0, 'b')" a.True a.None a.2.5 a.-3 "a.(7,)" | sort)" ]
    make "
import math, random
random.seed(7)
keys = [0.0, 0.1, 2.0, 1e16, -1e-05, 123456.75, 1 / 3, 0.1 + 0.2, math.inf, 5e-324, -3e-320, 2.2250738585072014e-308, 1.7976931348623157e308]
keys += [random.uniform(-1, 1) * 10 ** random.randrange(-320, 300) for _ in range(200)]
save('floats.pt', {key: tensor(Storage(str(k), [k]), [1]) for k, key in enumerate(keys)})
open('want', 'w').writelines(str(key) + '\n' for key in keys)"
    exits 0 s2s-ckpt ls floats.pt
    [ "$(printf '%s\n' "${lines[@]}" | cut -f1 | sort)" = "$(sort want)" ]
    [ "${#lines[@]}" -eq 213 ]
    # what is no number or text is the call that makes it
    make "
w = [tensor(Storage(str(k), [k]), [1]) for k in range(4)]
save('odd.pt', {'a': {Call('torch', 'device', ('cuda', 0)): w[0], Call('my', 'Stage', (2,)): w[1], b'q\'\xff': w[2],
                      (Call('torch', 'device', ('cpu',)), 5): [w[3]]}}, protocol=4)"
    exits 0 s2s-ckpt convert -q --to safetensors odd.pt odd.safetensors
    exits 0 s2s-ckpt diff odd.pt odd.safetensors
    [ "$(s2s-ckpt ls --json odd.safetensors | jq -r '.tensors[].name' | sort)" = "$(printf '%s\n' "a.torch.device('cuda', 0)" "a.my.Stage(2)" "a.b'q\\x27\\xff'" \
        "a.(torch.device('cpu'), 5).0" | sort)" ]
    make "save('class.pt', {'a': {frozenset([1]): tensor(Storage('0', [1]), [1])}})"
    exits 1 s2s-ckpt ls class.pt
    says "class.pt: a: dict key at byte"
}

@test "values beside tensors are themselves to torch.distributed.checkpoint, and are not Megatron's" {
    make "
w = {n: tensor(Storage(n, [1.0] * 16), [4, 4]) for n in (
     'model.embed_tokens.weight', *['model.layers.0.' + k + '.weight' for k in (
     'self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj', 'self_attn.o_proj', 'mlp.gate_proj', 'mlp.up_proj', 'mlp.down_proj')])}
w |= {n: tensor(Storage(n, [1.0] * 4), [4]) for n in (
     'model.norm.weight', 'model.layers.0.input_layernorm.weight', 'model.layers.0.post_attention_layernorm.weight')}
save('in.pt', {'state_dict': w, 'epoch': 77, 'run': {'name': b'letters'}})"
    exits 0 s2s-ckpt convert -q --to torch_dist in.pt plain
    python3 - <<'PY'
import re
items = open("plain/iter_0000001/__0_0.distcp", "rb").read()
assert b"\x80\x02KM." in items, re.findall(rb"\x80\x02.{0,9}M.{0,9}", items)
assert b"\x80\x02](" not in items
PY
    echo '{"model_type": "llama", "num_attention_heads": 2, "hidden_size": 4, "num_hidden_layers": 1, "intermediate_size": 4, "vocab_size": 4,
           "tie_word_embeddings": true}' >config.json
    exits 0 s2s-ckpt convert --to torch_dist --map llama --config config.json in.pt mapped
    says "left out: epoch (1), run.name (1)"
    s2s-ckpt ls mapped | grep object >objects
    [ -s objects ]
    not grep -v /shard_ objects
}

@test "settings whose keys give no names are one value, and the tensors beside them are read" {
    make "
w = tensor(Storage('0', [1, 2]), [2])
save('in.pt', {'w': w, 'run': {'stage': {Call('model', 'Stage', (1,)): 'fit'}, 'letters': {'\\0': 0, 'a': 1}, 'sizes': {2**70: b'x'}, 'lr': 0.5},
               'half': {'\\udc80': [1]}})"
    exits 0 s2s-ckpt convert --strict --to safetensors in.pt out.safetensors
    [ "$(s2s-ckpt ls out.safetensors | cut -f1)" = w ]
    s2s-ckpt ls --json in.pt 2>/dev/null >list.json
    python3 - <<'PY'
import json
found = {o["name"]: o["value"] for o in json.load(open("list.json"))["objects"]}
assert found == {"run.stage": {'{"class":"model.Stage","args":[1]}': "fit"}, "run.letters": {'"\\u0000"': 0, "a": 1}, "run.sizes": {"1180591620717411303424": "(1 bytes)"},
                 "run.lr": 0.5, "half": {"(text that is not UTF-8)": [1]}}, found
PY
    # a tensor among them has no name
    make "save('bad.pt', {'w': {'\\0': {'x': tensor(Storage('0', [1]), [1])}}})"
    exits 1 s2s-ckpt ls bad.pt
    says "w...: a name of 5 bytes with a NUL in it"
    make "
w = tensor(Storage('0', [1]), [1])
save('twice.pt', {'module.x': w, 'x': w})"
    exits 1 s2s-ckpt convert --to hf twice.pt out
    says "twice.pt: x would be written twice, from module.x and from x"
}

@test "DeepSpeed's folders, TorchScript's archives and GGUF are refused by name" {
    mkdir -p run/global_step10
    make "
w = {'module': {'w': tensor(Storage('0', [1]), [1])}}
save('run/global_step10/mp_rank_00_model_states.pt', w)
save('run/global_step10/zero_pp_rank_0_mp_rank_00_optim_states.pt', {})
import zipfile
with zipfile.ZipFile('script.pt', 'w', zipfile.ZIP_DEFLATED) as z:
    z.writestr('script/code/__torch__/model.py', 'class Net(Module):\\n' * 50)
    z.writestr('script/data.pkl', b'x' * 100)
    z.writestr('script/constants.pkl', b'x' * 100)"
    echo -n global_step10 >run/latest
    for folder in run run/global_step10; do
        exits 1 s2s-ckpt ls $folder
        says "a DeepSpeed checkpoint"
        says "zero_to_fp32.py"
    done
    exits 0 s2s-ckpt ls run/global_step10/mp_rank_00_model_states.pt
    says "module.w"
    exits 1 s2s-ckpt ls script.pt
    says "TorchScript archive: it holds a program"
    # with 123 tensors, which is the byte that begins a safetensors header
    mkdir llama
    { printf 'GGUF\3\0\0\0{'; head -c 300 /dev/zero; } >llama/model.gguf
    echo '{}' >llama/config.json
    for path in llama llama/model.gguf; do
        exits 1 s2s-ckpt ls $path
        says "$path: GGUF, the format of llama.cpp"
    done
}

@test "what trainers put around the names of a model is not in a Hugging Face folder" {
    make "
w = {n: tensor(Storage(n, [1]), [1]) for n in ('lm_head.weight', 'model.norm.weight', 'model.layers.0._x.weight')}
state = {'exp_avg': tensor(Storage('e', [1]), [1])}
def put(front, at=''): return {front + k.replace('layers.0.', 'layers.0.' + at): v for k, v in w.items()}
save('plain.pt', w)
save('lightning.ckpt', {'state_dict': w, 'optimizer_states': [{'state': {0: state}}], 'epoch': 3})
save('attribute.ckpt', {'state_dict': put('model.')})
save('trainer.pt', {'model_state_dict': w, 'optimizer_state_dict': {'state': {0: state}}})
save('ddp.pt', put('module.'))
save('compiled.pt', {'model': put('_orig_mod.'), 'optimizer': {'state': {0: state}}})
save('fsdp.pt', put('_fsdp_wrapped_module.', '_fsdp_wrapped_module._checkpoint_wrapped_module.'))
save('app.pt', {'app': {'model': w, 'optim': {'state': {'w': state}}}})
save('model_ddp.pt', {'model': put('module._orig_mod.'), 'optimizer': {'state': {0: state}}})
save('deepspeed.ckpt', {'state_dict': put('_forward_module.model.')})
save('attribute_ddp.ckpt', {'state_dict': put('module.model.')})
save('fabric.pt', {'model': put('_forward_module.model.module.')})
save('two.pt', {'model': w, 'ema': w})"
    exits 0 s2s-ckpt convert -q --strict --to hf plain.pt plain
    for file in lightning.ckpt attribute.ckpt trainer.pt ddp.pt compiled.pt fsdp.pt app.pt model_ddp.pt deepspeed.ckpt attribute_ddp.ckpt fabric.pt; do
        turn || continue
        exits 0 s2s-ckpt convert -q --strict --to hf $file "${file%.*}"
        exits 0 s2s-ckpt diff plain "${file%.*}"
    done
    # tensors beside the dict of weights are the trainer's
    make "
w = {n: tensor(Storage(n, [1]), [1]) for n in ('lm_head.weight', 'model.norm.weight', 'model.layers.0._x.weight')}
one = tensor(Storage('1', [7]), [1])
save('scores.ckpt', {'state_dict': w, 'callbacks': {'ModelCheckpoint': {'best_model_score': one, 'best_k_models': {'a/b.ckpt': one}}}})
save('rng.pt', {'model': w, 'torch_rng_state': one, 'cuda_rng_states': [one]})
save('loss.pt', {'model_state_dict': w, 'loss': one})
save('ema.pt', {'state_dict': w, 'state_dict_ema': w})
save('loop.pt', {'model': w, 'state_dict': {'best': one}})"
    for file in scores.ckpt rng.pt; do
        exits 0 s2s-ckpt convert -q --strict --to hf $file "${file%.*}"
        exits 0 s2s-ckpt diff plain "${file%.*}"
    done
    for file in loss.pt ema.pt; do
        exits 0 s2s-ckpt convert --to hf $file "${file%.*}"
        says "unused: "
        exits 0 s2s-ckpt diff plain "${file%.*}"
        exits 1 s2s-ckpt convert --strict --to hf $file strict
    done
    # which of two is the model's nobody says: all are there
    exits 0 s2s-ckpt convert -q --strict --to hf loop.pt loop
    [ "$(s2s-ckpt ls loop | wc -l)" -eq 4 ]
    # what stands behind the last dot may be nothing
    make "
save('dots.pt', {'module.' + k: tensor(Storage(str(n), [n]), [1]) for n, k in enumerate(('a', 'a.', '.a', 'b._orig_mod.c', '..'))})"
    exits 0 s2s-ckpt convert -q --strict --to hf dots.pt dots
    [ "$(s2s-ckpt ls dots | cut -f1 | sort | xargs)" = ".. .a a a. b.c" ]
    # a tied model that lies flat beside its optimizer, as plain torch.distributed.checkpoint
    make "
w = {n: tensor(Storage(n, [1]), [1]) for n in ('model.embed_tokens.weight', 'model.layers.0.x.weight')}
save('flat.pt', dict(w, optimizer={'state': {'s': tensor(Storage('s', [1]), [1])}}))"
    exits 0 s2s-ckpt convert -q --to torch_dist flat.pt flat
    rm flat/iter_0000001/metadata.json flat/iter_0000001/common.pt
    exits 0 s2s-ckpt convert -q --to hf flat flat.hf
    [ "$(s2s-ckpt ls flat.hf | cut -f1 | xargs)" = "model.embed_tokens.weight model.layers.0.x.weight" ]
    # not where they are names of the model: of two of them, and in Hugging Face's own files
    exits 0 s2s-ckpt convert -q --to hf two.pt two
    exits 0 s2s-ckpt ls two
    says "model.lm_head.weight"
    says "ema.lm_head.weight"
    s2s-ckpt convert -q --to safetensors ddp.pt ddp.safetensors
    exits 0 s2s-ckpt convert -q --to hf ddp.safetensors kept
    exits 0 s2s-ckpt ls kept
    says "module.lm_head.weight"
}

@test "objects that hold themselves, or lead back to what they are in, are values like others" {
    mkdir -p ranks/mp_rank_00
    make "
w = tensor(Storage('0', [1, 2]), [2])
Own, Conf, Value = named('own', 'Thing'), named('omegaconf.dictconfig', 'DictConfig'), named('omegaconf.nodes', 'AnyNode')
alone, first, second, conf, value, holder, deep = Own(), Own(), Own(), Conf(), Value(), Own(), Own()
alone.own = alone
# all of these lead to all others, in more ways than anybody can go
many = [Own() for _ in range(40)]
for one in many: one.others = list(many)
conf._content, value._val, value._parent, holder.conf = {'depth': value}, 3, conf, conf
first.next, second.next, second.w = second, first, w
save('own.pt', {'w': w, 'alone': alone, 'holder': holder, 'last': 5})
save('many.pt', {'w': w, 'many': many})
save('tensors.pt', {'both': {'second': second, 'first': first}})
save('ring.pt', {'first': first})
whole = Own()
whole.parts = [Own() for _ in range(300)]
for part in whole.parts: part.w, part.whole = w, whole
save('parts.pt', {'whole': whole})
save('ranks/mp_rank_00/model_optim_rng.pt', {'model': {'w': w}, 'alone': alone, 'conf': conf})"
    exits 0 s2s-ckpt ls --json own.pt
    says '{"name": "alone", "value": {"class":"own.Thing","state":{"own":"..."}}}'
    says '{"name": "last", "value": 5}'
    exits 1 s2s-ckpt ls many.pt
    says "repeat without end"
    exits 0 s2s-ckpt verify own.pt
    exits 0 s2s-ckpt ls ranks
    says "mp_rank_00/w"
    # a tensor in such a ring has one name, from where one first comes to it
    exits 0 s2s-ckpt ls tensors.pt
    says "both.second.w"
    exits 0 s2s-ckpt ls ring.pt
    says "first.next.w"
    [ "$(grep -c F32 <<<"$output")" -eq 1 ]
    # what knows the whole does not show it again
    exits 0 s2s-ckpt ls --json parts.pt
    says '{"name": "whole.parts.299.w", "dtype": "F32"'
    says '{"name": "whole.parts.299.whole", "value": "..."}'
}

@test "a common state whose values repeat without end is known in part, and that is said" {
    cp -r "$ROOT/tests/oracle/ckpt/data/mcore016_hybrid_tp2pp2ep2" dist
    make "
import glob
twice = []
for _ in range(40): twice = [twice, twice]
save(glob.glob('dist/iter_*/common.pt')[0], {'iteration': 1000, 'twice': twice})"
    exits 0 s2s-ckpt ls dist
    says "common.pt: its values repeat without end"
}

@test "NeMo's settings in a Lightning file are read through OmegaConf, whose nodes point back" {
    mkdir nemo && tar -C nemo -xf "$ROOT/tests/oracle/ckpt/data/tiny.nemo"
    s2s-ckpt convert -q --to hf "$ROOT/tests/oracle/ckpt/data/tiny.nemo" want
    # the names and shapes of the archive with numbers of this test
    s2s-ckpt ls --json nemo >list.json
    make "
import json
def node(module, name, parent, **state):
    made = named(module, name)()
    made.__dict__.update(state, _metadata=named('omegaconf.base', 'Metadata')(), _parent=parent)
    return made
def conf(value, parent=None):
    if isinstance(value, dict):
        made = node('omegaconf.dictconfig', 'DictConfig', parent)
        made._content = {k: conf(v, made) for k, v in value.items()}
    elif isinstance(value, list):
        made = node('omegaconf.listconfig', 'ListConfig', parent)
        made._content = [conf(v, made) for v in value]
    else:
        made = node('omegaconf.nodes', 'AnyNode', parent, _val=value)
    return made
def size(shape):
    n = 1
    for s in shape: n *= s
    return n
listed = json.load(open('list.json'))['tensors']
state = {t['name']: tensor(Storage(str(i), [0] * size(t['shape']), *(('q', 'LongStorage') if t['dtype'] == 'I64' else ())), t['shape'])
         for i, t in enumerate(listed)}
settings = {'preprocessor': {'sample_rate': 16000, 'window_size': 0.025, 'features': 16, 'n_fft': 512},
            'encoder': {'feat_in': '\${model.preprocessor.features}', 'd_model': 16, 'subsampling': 'dw_striding', 'xscaling': False,
                        'att_context_size': [-1, -1], 'dropout_emb': 0.0, 'dropout_att': 0.1, 'n_layers': 2}}
save('model.ckpt', {'state_dict': state, 'epoch': 3, 'hyper_parameters': {'cfg': conf(settings)}})
settings['encoder']['att_context_size'] = [70, 0]
save('limited.ckpt', {'state_dict': state, 'hyper_parameters': {'cfg': conf(settings)}})"
    exits 0 s2s-ckpt convert -q --to hf model.ckpt got
    cmp want/config.json got/config.json
    alike "$(s2s-ckpt ls want)" "$(s2s-ckpt ls got)"
    python3 -c "
import json
assert json.load(open('want/preprocessor_config.json')) == json.load(open('got/preprocessor_config.json'))"
    exits 1 s2s-ckpt convert -q --to hf limited.ckpt no
    says "encoder.att_context_size is limited"
}

@test "no safetensors file is written that no reader takes" {
    # a name that the format has for texts
    make "save('a.pt', {'__metadata__': tensor(Storage('0', [1, 2]), [2]), 'w': tensor(Storage('1', [3]), [1])})"
    for to in safetensors hf; do
        exits 1 s2s-ckpt convert --to $to a.pt out
        says "a.pt: a tensor is called __metadata__"
        says "--to torch_dist keeps it"
        [ ! -e out ]
    done
    exits 0 s2s-ckpt convert --to torch_dist a.pt dist
    exits 0 s2s-ckpt diff a.pt dist
}

@test "long: two safetensors headers of 50 MB fit, one of both is refused" {
    mkdir in
    python3 - <<'PY'
import json, struct
for k in 1, 2:
    names = {"%d.%s%d" % (k, "n" * 4000, i): {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(12400)}
    head = json.dumps(names).encode()
    open("in/model-0000%d-of-00002.safetensors" % k, "wb").write(struct.pack("<Q", len(head)) + head + bytes(len(names)))
PY
    exits 1 s2s-ckpt convert --to safetensors in out
    says "in: a safetensors header of 100"
    says "of which no reader takes more than 100000000"
    [ ! -e out ]
}

@test "tensors in a tuple, a value to torch.distributed.checkpoint, are lost only when that was seen" {
    PYTHONPATH=$ROOT/tests/oracle/ckpt python3 - <<'PY'
from mini_writer import item_pkl, write
floats = bytes(range(8))
pair = b"\x80\2" + 2 * item_pkl("FloatStorage", (2,))[2:-1] + b"\x86."
write("in", [("w", "float32", (2,), [((0,), (2,), floats)])], objs=[("pair", pair, floats), ("epoch", b"\x80\2K\3."), ("optim.pair", pair, floats)],
      sharded_backend=None)
PY
    for to in safetensors hf; do
        exits 0 s2s-ckpt convert --to $to in $to
        says "pair: a value with tensors in it, of which no tensor is read"
        says_not "epoch: a value"
        says_not "optim.pair: a value"
        exits 1 s2s-ckpt convert --strict --to $to in strict
        says "in: pair is a value with tensors in it, of which no tensor is read (--strict)"
        not test -e strict
    done
    exits 0 s2s-ckpt convert --strict --to torch_dist in dist
    says_not "a value with"
    says_not "left out"
    for folder in in dist; do
        exits 0 s2s-ckpt verify $folder
        says "pair: a value with tensors in it, of which no tensor is read"
        says "the tensors in 1 object are not read"
    done
}
