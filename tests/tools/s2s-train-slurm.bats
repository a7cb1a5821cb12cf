# Under Slurm: a cluster of this machine alone, where its daemons are installed (Debian: slurmctld, slurmd, slurm-client).
load common
load train

setup_tool() {
    command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v srun >/dev/null || skip "no Slurm is installed"
    [ "$(id -u)" -eq 0 ] || skip "slurmd wants to be root"
    tiny_model '' 3 0 1
    mkdir controller node
    local port=$((20000 + $$ % 20000))
    cat >slurm.conf <<CONF
ClusterName=one
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation=$PWD/controller
SlurmdSpoolDir=$PWD/node
SlurmctldPidFile=$PWD/controller.pid
SlurmdPidFile=$PWD/node.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SchedulerType=sched/builtin
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
NodeName=one NodeAddr=127.0.0.1 CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    export SLURM_CONF=$PWD/slurm.conf
    slurmctld -D >controller.log 2>&1 3>&- &
    echo $! >daemons
    slurmd -D -N one >node.log 2>&1 3>&- &
    echo $! >>daemons
    for _ in $(seq 100); do
        [ "$(sinfo -h -o %t 2>/dev/null)" != idle ] || return 0
        sleep 0.1
    done
    cat controller.log node.log
    return 1
}

# Steps that are left would keep their node's daemon.
teardown() {
    [ -e daemons ] || return 0
    squeue -h -o %i | xargs -r timeout 5 scancel --signal=KILL --full
    within 5 test -z "$(squeue -h)" || :
    kill $(tac daemons) || :
    sleep 0.5
    kill -KILL $(cat daemons) 2>/dev/null || :
}

# within SECONDS COMMAND...: it becomes true
within() {
    local tenths=${1}0
    shift
    for _ in $(seq "$tenths"); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    return 1
}

# steps RUN N: so many are in its log
steps() {
    [ "$(cat "$1/log.jsonl" 2>/dev/null | wc -l)" -ge "$2" ]
}

queued() {
    [ "$(squeue -h -o %t)" = PD ]
}

@test "long: srun starts ranks that find each other by PMIx, and train as one process; without it they say how" {
    srun --mpi=pmix -n 2 s2s-train -q -j1 r.yaml run=two mesh.tp=2
    s2s-train -q -j1 r.yaml run=one
    python3 "$ROOT/tests/tools/mesh_equal.py" one two
    exits 1 srun --mpi=none -n 2 s2s-train r.yaml -j1 run=none mesh.tp=2
    says "srun started 2 tasks, but gave them no way to find each other; start with srun --mpi=pmix"
}

@test "long: a rank that is killed ends the step, and is named" {
    srun --mpi=pmix -n 2 s2s-train r.yaml -q -j1 run=killed mesh.tp=2 train.steps=1000000 >said 2>&1 3>&- &
    within 20 steps killed 3
    # the step's daemon has the ranks as children
    kill -KILL "$(pgrep -P "$(pgrep -f "slurmstepd: \[$(squeue -h -o %i)\.0\]")" -x s2s-train | tail -n 1)"
    code=0
    wait $! || code=$?
    [ $code -ne 0 ]
    grep -E 's2s-train\[[01]\]: .*rank [01] \(pid [0-9]+ on .*\) died in step' said
}

@test "long: the job script of the manual saves when it is told, is queued again, and goes on" {
    sed -n '/^    #!\/bin\/bash/,/^$/s/^    //p' "$ROOT/doc/MESH.md" |
        sed 's/--nodes=4 --ntasks-per-node=8 --cpus-per-task=8/--nodes=1 --ntasks-per-node=2/; s/recipe.yaml mesh.tp=4/r.yaml -q -j1 run=job mesh.tp=2 train.steps=1000000/' >job.sh
    grep -q 'srun --mpi=pmix s2s-train r.yaml' job.sh
    id=$(sbatch --parsable job.sh)
    within 20 steps job 3
    scancel -b --signal=USR1 "$id"
    within 10 grep -q 'its checkpoint is in job/checkpoints; the same command continues from there' "slurm-$id.out"
    before=$(wc -l <job/log.jsonl)
    within 20 queued
    scontrol update JobId="$id" StartTime=now # instead of two minutes later
    within 30 steps job $((before + 3))
    scancel "$id"
    # each step once: it went on behind the last one
    python3 -c '
import json
steps = [json.loads(line)["step"] for line in open("job/log.jsonl")]
assert steps == list(range(1, len(steps) + 1)), steps'
}
