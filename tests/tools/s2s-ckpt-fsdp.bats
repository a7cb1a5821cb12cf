# Folders of a torch.save file for each FSDP rank (model_world_size_N_rank_R.pt of verl and SkyRL). What PyTorch itself writes is held
# against its full_tensor() in tests/oracle/ckpt/check_fsdp_ranks.py.

load common

setup_tool() {
    DATA=$ROOT/tests/oracle/ckpt/data
}

# of FOLDER RANKS, Python that saves what rank r has of n: save(part(..), ..)
of() {
    rm -rf "$1"
    mkdir "$1"
    PYTHONPATH=$ROOT/tests/tools python3 -c "from torch_files import *
n = $2
def floats(shape, first=1, key='0'):
    numel = 1
    for size in shape:
        numel *= size
    return tensor(Storage(key, [first + i for i in range(numel)]), shape)
for r in range(n):
    def save_as(state):
        save('$1/model_world_size_%d_rank_%d.pt' % (n, r), state)
    line = mesh(r, [n])
$(sed 's/^/    /')"
}

@test "the files of FSDP ranks are one checkpoint of whole tensors, by every command" {
    mkdir -p run/global_step_7/actor
    cp "$DATA"/fsdp_rank/* run/global_step_7/actor
    printf 7 >run/latest_checkpointed_iteration.txt
    for path in run run/global_step_7 run/global_step_7/actor; do
        s2s-ckpt ls --sha256 $path >got
        cmp got "$DATA/fsdp_rank.expected.tsv"
    done
    exits 0 s2s-ckpt verify --strict run
    says "actor: fsdp_rank, 9 tensors, 310 B, 0 objects: complete and consistent; no manifest, CRC-32s of all tensors are right"
    says_not warning
    [ "$(s2s-ckpt cat run d | sha256sum | cut -c1-64)" = "$(awk '$1 == "d" {print $NF}' "$DATA/fsdp_rank.expected.tsv")" ]
    exits 0 s2s-ckpt convert --to safetensors run one.safetensors
    exits 0 s2s-ckpt diff run one.safetensors
    exits 0 s2s-ckpt convert --from fsdp_rank --to torch_dist run dist
    exits 0 s2s-ckpt diff run dist
    exits 0 s2s-ckpt average run run mean
    exits 0 s2s-ckpt diff run mean

    # what is beside is named
    touch run/global_step_7/actor/{optim,extra_state}_world_size_3_rank_{0,1,2}.pt
    exits 0 s2s-ckpt verify run
    says "actor: optim_world_size_*.pt are not read: the optimizer's state"
    says "actor: extra_state_world_size_*.pt are not read: states of schedulers and random generators"
    # a file alone is a part
    exits 0 s2s-ckpt ls run/global_step_7/actor/model_world_size_3_rank_1.pt
    says "by its name one of a file for each rank, and read alone; name the folder"
    says "d: a torch.distributed.tensor.DTensor, of which no tensor is read"
}

@test "a Hugging Face folder is made with the files of verl's huggingface/ beside the ranks" {
    mkdir actor
    cp "$DATA"/fsdp_rank/* actor
    mkdir actor/huggingface
    echo '{"model_type": "none", "dtype": "bfloat16"}' >actor/huggingface/config.json
    echo '{}' >actor/huggingface/tokenizer.json
    echo '{"FSDP_version": 2, "world_size": 3}' >actor/fsdp_config.json
    touch actor/optim_world_size_3_rank_{0,1,2}.pt
    exits 0 s2s-ckpt convert --to hf actor out
    says_not "left out"
    [ "$(echo out/*)" = "out/config.json out/model.safetensors out/s2s-manifest.json out/tokenizer.json" ]
    grep -q none out/config.json
    exits 0 s2s-ckpt diff actor out
    sed -i s/3}/4}/ actor/fsdp_config.json
    exits 1 s2s-ckpt ls actor
    says "actor: fsdp_config.json says world_size 4, the files are of 3 ranks"
}

@test "FSDP ranks: the forms that PyTorch has had of meshes and DTensors, parts without elements, replicas, and two cuts" {
    for form in axes layout tensor old; do
        of in 3 <<PY
made = mesh(r, [3], form='$form'.replace('old', 'tensor'))
part = floats([(2, 2), (2, 2), (0, 2)][r], 1 + 4 * r)
save_as({'w': dtensor(part, (4, 2), made, [cut(0)], old='$form' == 'old'), 'empty': dtensor(floats((0,), key='1'), (0, 5), made, [cut(0)])})
PY
        exits 0 s2s-ckpt verify in
        [ "$(s2s-ckpt ls in | tr '\t' ' ')" = "empty F32 [0, 5] 0
w F32 [4, 2] 32" ]
        [ "$(s2s-ckpt cat in w | od -An -v -f -w32 | tr -s ' ')" = " 1 2 3 4 5 6 7 8" ]
    done
    # rows by the first axis of the mesh, columns by the second; or rows by both
    of in 4 <<'PY'
grid = mesh(r, [2, 2])
a, b = r // 2, r % 2
save_as({'both': dtensor(tensor(Storage('0', [[1, 2, 4, 5], [3, 6], [7, 8], [9]][r]), [2 - a, 2 - b]), (3, 3), grid, [cut(0), cut(1)]),
         'rows': dtensor(tensor(Storage('1', [[1, 2], [3], [4], [5]][r]), [1 + (r == 0)]), (5,), grid, [cut(0), cut(0)]),
         'copied': dtensor(floats((2 - b,), 1 + 2 * b, '2'), (3,), grid, [placement('Replicate'), cut(0)])})
PY
    exits 0 s2s-ckpt verify in
    for name in both rows copied; do
        s2s-ckpt cat in $name | od -An -v -f -w64 | tr -s ' '
    done >got
    [ "$(cat got)" = " 1 2 3 4 5 6 7 8 9
 1 2 3 4 5
 1 2 3" ]
}

@test "FSDP ranks: what several have must be equal, which verify sees" {
    of in 4 <<'PY'
grid = mesh(r, [2, 2])
save_as({'w': dtensor(floats((2,), 1 + 2 * (r % 2) + (r == 3)), (4,), grid, [placement('Replicate'), cut(0)])})
PY
    exits 0 s2s-ckpt ls in
    exits 1 s2s-ckpt verify in
    says "in: w: model_world_size_4_rank_1.pt and model_world_size_4_rank_3.pt have copies of it that differ"
    of in 2 <<'PY'
save_as({'b': floats((3,), 1 + r)})
PY
    exits 1 s2s-ckpt verify in
    says "in: b: model_world_size_2_rank_0.pt and model_world_size_2_rank_1.pt have copies of it that differ"
    # a copy's checksum, too
    of in 2 <<'PY'
save_as({'b': floats((3,), 1)})
PY
    exits 0 s2s-ckpt verify in
    python3 - <<'PY'
path = "in/model_world_size_2_rank_1.pt"
data = open(path, "rb").read()
at = data.index(b"\0\0\x80\x3f\0\0\0\x40")
open(path, "wb").write(data[:at] + b"\1" + data[at + 1:])
PY
    exits 1 s2s-ckpt verify in
    says "model_world_size_2_rank_1.pt"
    says "CRC-32"
}

@test "FSDP ranks: files of other saves, and those that are missing or renamed, are named" {
    cp -r "$DATA/fsdp_rank" in
    mv in/model_world_size_3_rank_1.pt .
    exits 1 s2s-ckpt ls in
    says "in: model_world_size_3_rank_1.pt is missing: there are files of 2 of 3 ranks"
    cp model_world_size_3_rank_1.pt in/model_world_size_2_rank_1.pt
    exits 1 s2s-ckpt ls in
    says "files of two saves: model_world_size_2_rank_1.pt is of 2 ranks, model_world_size_3_rank_0.pt of 3"
    rm in/model_world_size_2_rank_1.pt
    for name in 03_rank_1 3_rank_3 3_rank_x 3 3_rank_1.2 0_rank_0 99999999999999999999_rank_0; do
        turn || continue
        touch in/model_world_size_$name.pt
        exits 1 s2s-ckpt ls in
        says "model_world_size_$name.pt: a rank's file is named model_world_size_N_rank_R.pt"
        rm in/model_world_size_$name.pt
    done
    # another rank's file under this name
    cp in/model_world_size_3_rank_0.pt in/model_world_size_3_rank_1.pt
    exits 1 s2s-ckpt ls in
    says "model_world_size_3_rank_1.pt: d: DeviceMesh at byte"
    says "it says that this is another rank's file"
}

# refuses TEXT, Python for the value of w in a file of two ranks: `ls` fails with TEXT
refuses() {
    of in 2 <<<"save_as($2)"
    exits 1 s2s-ckpt ls in
    says "$1"
}

@test "FSDP ranks that do not fit together are refused, each with what does not fit" {
    refuses "w is in model_world_size_2_rank_0.pt and not in model_world_size_2_rank_1.pt" "{'v': floats((2,)), **({'w': floats((2,), key='1')} if r == 0 else {})}"
    refuses "w is in model_world_size_2_rank_1.pt and not in model_world_size_2_rank_0.pt" "{'v': floats((2,)), **({'w': floats((2,), key='1')} if r == 1 else {})}"
    refuses "w has other shapes or dtypes in model_world_size_2_rank_0.pt and model_world_size_2_rank_1.pt" "{'w': floats((2 + r,))}"
    refuses "w has other shapes or dtypes" "{'w': dtensor(floats((2, 2 + r)), (4, 2 + r), line, [cut(0)])}"
    refuses "w has other shapes or dtypes" "{'w': dtensor(tensor(Storage('0', [1, 2], 'i' if r else 'f', 'IntStorage' if r else 'FloatStorage'), [2]), (4,), line, [cut(0)], 'int32' if r else 'float32')}"
    refuses "w is cut by other meshes or placements" "{'w': dtensor(floats((1, 2) if r else (2, 1)), (2, 2), line, [cut(1 - r)])}"
    refuses "w is cut by other meshes or placements" "{'w': dtensor(floats((2,)), (4,), mesh(r, [2, 1]) if r else line, [cut(0)] + [placement('Replicate')] * r)}"
    refuses "w is cut by other meshes or placements" "{'w': dtensor(floats((2,)), (2,), line, [placement('Replicate')]) if r else floats((2,))}"
    refuses "model_world_size_2_rank_1.pt: w: the part is [3], that of this rank of a tensor [5] is [2]" "{'w': dtensor(floats((3,)), (5,), line, [cut(0)])}"
    refuses "w: the part is [2], that of this rank of a tensor [4] is [4]" "{'w': dtensor(floats((2,)), (4,), line, [placement('Replicate')])}"
    refuses "the values beside tensors are not the same in model_world_size_2_rank_0.pt and model_world_size_2_rank_1.pt" "{'w': floats((2,)), 'n': r}"
    refuses "the values beside tensors are not the same" "{'w': floats((2,)), **({'n': 1} if r else {})}"
    refuses "the values beside tensors are not the same" "{'w': floats((2,)), 'n': float('nan') if r else 1.0}"
}

@test "DTensors of other kinds are refused by name" {
    for kind in _StridedShard Partial; do
        refuses "model_world_size_2_rank_0.pt: w: a DTensor with placement torch.distributed.tensor.placement_types.$kind (byte" "{'w': dtensor(floats((2,)), (4,), line, [placement('$kind', dim=0)])}"
    done
    refuses "w: a tensor of class torch.distributed.tensor.Other (byte" "{'w': dtensor(floats((2,)), (4,), line, [cut(0)], name='Other')}"
    refuses "w: a DTensor with parts of class torch.distributed.tensor.Other (byte" "{'w': dtensor(dtensor(floats((2,)), (2,), line, [], name='Other'), (4,), line, [cut(0)])}"
    refuses "w: DTensor at byte" "{'w': dtensor(floats((2,)), (4,), line, [cut(1)])}"
    says "it is cut along an axis that it does not have"
    refuses "its dtype is not that of its part" "{'w': dtensor(floats((2,)), (4,), line, [cut(0)], 'float16')}"
    refuses "of 1 ranks, where there are files of 2" "{'w': dtensor(floats((2,)), (2,), mesh(r, [1], [r]), [cut(0)])}"
    refuses "it has not each rank once" "{'w': dtensor(floats((2,)), (4,), mesh(r, [2], [r, r]), [cut(0)])}"
    refuses "its ranks do not ascend along each axis" "{'w': dtensor(floats((2,)), (4,), mesh(r, [2], [1, 0]), [cut(0)])}"
    refuses "has not one placement for each of its axes" "{'w': dtensor(floats((2,)), (4,), line, [cut(0), cut(0)])}"
    refuses "whose shard_order is not that of its mesh" "{'w': dtensor(floats((2,)), (4,), mesh(r, [2, 1]), [cut(0), cut(0)], order=(Call('torch.distributed.tensor._dtensor_spec', 'ShardOrderEntry', (0, (1, 0))),))}"
    refuses "w: a tensor that is not a dense array" "{'w': Call('torch._utils', '_rebuild_sparse_tensor', (floats((2,)),))}"
}

@test "long: FSDP ranks: many ways to cut by a mesh of many ranks take little memory" {
    case ${S2S_BIN:-} in *sanitize*) skip "memory of the sanitizers" ;; esac
    # the files of the other ranks are empty, and read after this one
    of in 1 <<'PY'
import itertools
n, kinds = 20000, [placement('Replicate')] + [cut(axis) for axis in range(8)]
of = mesh(0, [n] + [1] * 7, form='layout')
one = tensor(Storage('0', [1]), (1,) * 8)
ways = itertools.islice(itertools.product(kinds, repeat=7), 2000)
save('in/model_world_size_%d_rank_0.pt' % n, {str(i): dtensor(one, (1,) * 8, of, kinds[:1] + list(way)) for i, way in enumerate(ways)})
for other in range(1, n):
    open('in/model_world_size_%d_rank_%d.pt' % (n, other), 'w').close()
PY
    (ulimit -v 300000; s2s-ckpt ls in 2>got) || true
    grep -q "rank_1.pt: 0 bytes are too few" got
}

@test "long: FSDP ranks: meshes without end are refused" {
    mkdir in
    PYTHONPATH=$ROOT/tests/tools python3 - <<'PY'
from torch_files import *
n = 20000
def again(m):
    m.what[3]['_flatten_rank_map'] = ranks
    return m
ranks = tuple(range(n))
one = tensor(Storage('0', [1]), (1,))
save('in/model_world_size_%d_rank_0.pt' % n, {str(i): dtensor(one, (1,), again(mesh(0, [n], form='layout')), [placement('Replicate')]) for i in range(1000)})
for other in range(1, n):
    open('in/model_world_size_%d_rank_%d.pt' % (n, other), 'w').close()
PY
    exits 1 s2s-ckpt ls in
    says "DeviceMesh at byte"
    says "one of more than 838"
}
