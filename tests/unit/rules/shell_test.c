/* Launch scripts are read, never run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/rules/rules.h"

/* A value of the arguments ("" if absent, "?" if unknown); line and column are the last one's. */
static int line, column;

static const char *argument(const char *script, const char *flag)
{
    static char text[256];
    struct s2s_conf *conf = s2s_rules_read_shell(script, strlen(script), "run.sh");
    char *path = s2s_xasprintf("MODEL_ARGS.%s", flag);
    const struct s2s_conf *node = s2s_conf_find(conf, path);
    snprintf(text, sizeof text, "%s", !node ? "" : strstr(node->text, "${") ? "?" : node->text);
    line = node ? node->place.line : 0;
    column = node ? node->place.column : 0;
    free(path);
    s2s_conf_free(conf);
    return text;
}

#define RUN "torchrun pretrain_gpt.py --micro-batch-size 1 "

/* A script, and what $A is where its command is. */
struct value_case {
    const char *script, *value;
};

static void check_values(const struct value_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *script = s2s_xasprintf("%s" RUN "--lr $A\n", cases[i].script);
        const char *value = argument(script, "--lr");
        if (strcmp(value, cases[i].value) != 0)
            print_message("%s", script);
        assert_string_equal(value, cases[i].value);
        free(script);
    }
}

static void words_variables_and_arrays_become_flags(void **state)
{
    assert_string_equal(argument(RUN "--num-layers 12\n", "--num-layers"), "12");
    assert_int_equal(column, 60);
    assert_string_equal(argument(RUN "--num-layers=12 --bf16\n", "--bf16"), "true");
    assert_string_equal(argument("L=12\n" RUN "--num-layers $L\n", "--num-layers"), "12");
    assert_int_equal(line, 1);
    assert_int_equal(column, 3);
    assert_string_equal(
        argument("L=12; M=$((L*2 + (1+1)))\n" RUN "--num-layers ${M}\n", "--num-layers"), "26");
    assert_string_equal(
        argument("A=(\n  --num-layers 12 # twelve\n  --bf16\n)\nA+=(--lr 1e-4)\n" RUN
                 "\"${A[@]}\" \\\n  --seq-length 8\n",
                 "--lr"),
        "1e-4");
    assert_int_equal(line, 5);
    assert_string_equal(argument("A=\"--num-layers 12 \\\n --bf16\"\n" RUN "$A\n", "--num-layers"),
                        "12");
    assert_string_equal(argument("srun sh -c \"" RUN "--num-layers 12\"\n", "--num-layers"), "12");
    assert_string_equal(argument(RUN "--spec a b --num-layers 3 --num-layers 4\n", "--num-layers"),
                        "4");
    assert_string_equal(argument(RUN "--spec a b --num-layers 3\n", "--spec"), "a b");
    assert_string_equal(argument("L=${N:-12}\n" RUN "--num-layers $L\n", "--num-layers"), "12");
    assert_string_equal(argument("N=4\nL=${N:-12}\n" RUN "--num-layers '$L'\n", "--num-layers"),
                        "$L");
}

static void what_a_script_decides_at_run_time_is_unknown(void **state)
{
    assert_string_equal(argument(RUN "--num-layers $(nproc)\n", "--num-layers"), "?");
    assert_string_equal(argument(RUN "--num-layers `nproc`\n", "--num-layers"), "?");
    assert_string_equal(argument(RUN "--num-layers $1\n", "--num-layers"), "?");
    assert_string_equal(argument(RUN "--num-layers $NOWHERE\n", "--num-layers"), "?");
    assert_string_equal(argument(RUN "--num-layers $((12/0))\n", "--num-layers"), "?");
    assert_string_equal(
        argument("L=1\nif [ $X ]; then\n  L=2\nfi\n" RUN "--num-layers $L\n", "--num-layers"), "?");
    assert_string_equal(argument("case $1 in\n --num-layers) L=$2;;\nesac\n" RUN "--num-layers 5\n",
                                 "--num-layers"),
                        "5");
    assert_string_equal(argument("echo --num-layers 3\n# --num-layers 4\ncat <<EOF\n" RUN
                                 "--num-layers 6\nEOF\n" RUN "--num-layers 5\n",
                                 "--num-layers"),
                        "5");
    assert_string_equal(argument("A=$A$A; B=$B\n" RUN "--num-layers $A\n", "--num-layers"), "?");
}

/* bash -c 'SCRIPT' is read where it stands */
static void a_script_inside_a_script_is_read(void **state)
{
    static const char script[] = "srun -N 2 bash -c '\n  N=3\n  python pretrain_gpt.py \\\n"
                                 "    --num-layers $N \\\n    $([ x = y ] && echo --bf16) \\\n"
                                 "    --lr 1e-4\n' after\n";
    assert_string_equal(argument(script, "--num-layers"), "3");
    assert_int_equal(line, 2);
    assert_string_equal(argument(script, "--lr"), "1e-4");
    assert_int_equal(line, 6);
    assert_string_equal(argument(script, "--bf16"), "");
    struct s2s_conf *conf = s2s_rules_read_shell(script, strlen(script), "run.sh");
    assert_string_equal(s2s_conf_find(conf, "BATCH.nodes")->text, "2");
    s2s_conf_free(conf);
}

/* A flag that is there only under a condition is neither given nor absent. */
static void what_a_condition_adds_is_in_doubt(void **state)
{
    static const char array[] = "A=(--num-layers 12 --bf16)\nif [ $X = 1 ]; then\n"
                                "  A=(\"${A[@]}\" --profile --lr 3)\nfi\n" RUN "${A[@]}\n";
    static const char text[] = "A=\"--num-layers 12\"\nif [ $X = 1 ]; then\n"
                               "  A=\"$A --profile --lr 3\"\nfi\n" RUN "$A\n";
    const char *const both[] = {array, text};
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(argument(both[i], "--num-layers"), "12");
        assert_string_equal(argument(both[i], "--profile"), "?");
        assert_string_equal(argument(both[i], "--lr"), "?");
    }
}

/* Branches that the script's own values decide are taken or not. */
static void branches_are_taken_where_the_text_decides(void **state)
{
    static const struct {
        const char *script, *flag, *value;
    } cases[] = {
        {"M=1\nif [ $M = 1 ]; then\n A=\"--lr 1\"\nelse\n A=\"--lr 2\"\nfi\n", "--lr", "1"},
        {"M=2\nif [ $M = 1 ]; then\n A=\"--lr 1\"\nelse\n A=\"--lr 2\"\nfi\n", "--lr", "2"},
        {"M=2\nif [ $M = 1 ]; then\n A=\"--lr 1\"\nelif [ $M -eq 2 ]; then\n A=\"--lr 2\"\n"
         "else\n A=\"--lr 3\"\nfi\n",
         "--lr", "2"},
        {"M=a\nif [[ \"$M\" != \"a\" ]]; then\n A=\"--lr 1\"\nelif [ $X = 2 ]; then\n"
         " A=\"--lr 2\"\nelse\n A=\"--lr 3\"\nfi\n",
         "--lr", "?"},
        {"A=\"--lr 1\"\nif [ $X = 1 ]; then\n A=\"--lr 2\"\nelse\n A=\"--lr 3\"\nfi\n", "--lr",
         "?"},
        {"M=\nif [ -z \"$M\" ]; then\n A=\"--lr 1\"\nfi\n", "--lr", "1"},
        {"M=\nA=\"--lr 1\"\nif [ -n \"$M\" ]; then\n A=\"--lr 2\"\nfi\n", "--lr", "1"},
        {"M=1\nif [ $M = 1 ] && [ $X = 1 ]; then\n A=\"--lr 1\"\nfi\n", "--lr", "?"},
        {"M=1\nif [ $M = 0 ]; then\n if [ $X = 1 ]; then\n  A=\"--lr 1\"\n fi\nelse\n"
         " A=\"--lr 2\"\nfi\nB=3\n",
         "--lr", "2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *script = s2s_xasprintf("%s" RUN "$A\n", cases[i].script);
        assert_string_equal(argument(script, cases[i].flag), cases[i].value);
        free(script);
    }
    /* the command of a branch that is not taken counts only if there is no other */
    static const char other[] =
        "M=1\nif [ $M = 0 ]; then\n" RUN "--lr 1\nelse\n" RUN "--lr 2\nfi\n",
                      only[] = "M=1\nif [ $M = 0 ]; then\n" RUN "--lr 1\nfi\n";
    assert_string_equal(argument(other, "--lr"), "2");
    assert_string_equal(argument(only, "--lr"), "1");
}

/* What stands behind && and ||, in braces, behind `else`, or changes a variable otherwise. */
static void lists_groups_and_sums_are_followed(void **state)
{
    static const struct value_case cases[] = {
        {"M=1; A=1\n[ $M = 2 ] && A=2\n", "1"},
        {"M=1; A=1\n[[ $M -eq 1 ]] && A=2\n", "2"},
        {"M=1; A=1\n[ $M = 1 ] || A=2\n", "1"},
        {"M=1; A=1\n[ $M = 2 ] ||\n  A=2\n", "2"},
        {"A=1\n[ $X = 2 ] && A=2\n", "?"},
        {"A=1\nnvidia-smi && A=2\n", "?"},
        {"M=1; A=1\n[ $M = 2 ] && A=2 || A=3\nB=4\n", "3"},
        {"M=1; A=1\n! [ $M = 2 ] && [ ! $M -gt 2 ] && A=2\n", "2"},
        {"M=1; A=1\n(( M > 2 )) && { A=2; A=3; }\n", "1"},
        {"M=1; A=1\n(( M < 2 )) && { A=2; [ $M = 7 ] && A=3; A=4$A; }; B=1\n", "42"},
        {"M=1; A=1\nif [ $M = 1 ] && [ $M -lt 3 ]; then A=2; else A=3; fi\n", "2"},
        {"M=1; A=1\nif [ $M = 2 ] || false; then A=2; else A=3; fi\n", "3"},
        {"M=1; A=1\nif [ $M = 2 ] && [ $X = 1 ]; then A=2; fi\n", "1"},
        {"M=1\nif [ $X ]; then A=2; elif [ $M = 1 ]; then A=3; fi\n", "?"},
        {"A=3; ((A++)); ((A *= 2))\nlet A=A+1\n", "9"},
        {"A=3; ((A -= X))\n", "?"},
        {"A=3; read A\n", "?"},
        {"A=`nvidia-smi -L | wc -l`\nA=${A:-1}\n", "?"},
        {"B=\"`expr 1 + 2`\" A=3\n", "3"},
        {"A=3\nfor A in 1 2; do\n  B=1\ndone\n", "?"},
        {": ${A:=3}\n", "3"},
        {"A=4; : ${A:=3}\n", "4"},
        {"A=1; A+=2\n", "12"},
        {"A=1\n[ $X ] && A=16\n", "?"},
        {"A=3\nIFS=, read -ra B <<< \"$L\"\n", "3"},
        {"A=3\n(cd x; A=4)\n", "3"},
        {"A=3\n[[ $A == [1-4] ]] && A=5\n", "?"},
        {"A=$((010))\n", "?"},
        {"B=1+1; A=$((B*3))\n", "6"},
    };
    check_values(cases, sizeof cases / sizeof *cases);
    /* inside a function its own variables count */
    assert_string_equal(argument("A=3\nrun() {\n  local A=4\n  " RUN "--lr $A\n}\nrun\n", "--lr"),
                        "4");
    /* what may have been replaced is in doubt too */
    assert_string_equal(
        argument("A=(--lr 1 --bf16)\n[ $X ] && A=(--lr 1)\n" RUN "\"${A[@]}\"\n", "--bf16"), "?");
    assert_string_equal(argument("A='--lr 1 --bf16'\n[ $X ] && A='--lr 2'\n" RUN "$A\n", "--bf16"),
                        "?");
    assert_string_equal(argument("A='--lr 1'\n[ $X ] && A=\n" RUN "$A\n", "--lr"), "?");
}

/* A word of the script's own decides which patterns of `case` match. */
static void the_branch_of_a_case_is_taken_where_the_text_decides(void **state)
{
    static const struct value_case cases[] = {
        {"M=b; A=1\ncase $M in\n  a) A=2 ;;\n  b) A=3 ;;\n  *) A=4 ;;\nesac\n", "3"},
        {"M=c; A=1\ncase \"$M\" in\n  a|b) A=2 ;;\n  (d | c) A=3;;\n  *) A=4\nesac\n", "3"},
        {"M=x; A=1\ncase $M in a) A=2;; *) A=4;; esac\n", "4"},
        {"M=x; A=1\ncase $M in a) A=2;; b) A=3; esac; B=1\n", "1"},
        {"M=8b-chat; A=1\ncase $M in\n # sizes\n 70b*) A=2;;\n 8b*) A=3; [ $A = 3 ] && "
         "A=5;;\nesac\n",
         "5"},
        {"M='*'; A=1\ncase $M in 'x') A=2;; \"*\") A=3;; esac\n", "?"},
        {"A=1\ncase $X in a) A=2;; *) A=3;; esac\n", "?"},
        {"A=1\ncase $X in *) A=3;; esac\n", "3"},
        {"M=a; A=1\nfor i in 1 2; do case $M in a) M=b;; b) A=3;; esac; done\n", "?"},
        {"M=b; A=1\ncase $M in $X) A=2;; b) A=3;; esac\n", "?"},
        {"M=a; A=1\ncase $M in a) A=2;& b) A=3;; c) A=4;; esac\n", "?"},
        {"M=a; A=1\ncase $M in @(a|b)) A=2;; esac\n", "?"},
        {"M=a; N=2; A=1\ncase $M in\n a) case $N in 1) A=2;; 2) A=3;; esac;;\n b) "
         "A=4;;\nesac\nB=1\n",
         "3"},
        {"M=a; A=1\nif [ $M = b ]; then\n case $M in a) A=2;; esac\nelse A=5; fi\n", "5"},
        {"f() { case $1 in a) A=2;; *) A=3;; esac; }\nA=1\nf\n", "?"},
        {"M=a; A=1\n[ $M = b ] && case $M in a) A=2;; esac\nB=1\n", "1"},
        {"M=; A=1\ncase $M in a) A=2;; esac\nA=3\n", "3"},
        {"M=; A=1\ncase \"$M\" in '') A=2;; esac\n", "2"},
    };
    check_values(cases, sizeof cases / sizeof *cases);
}

/* NAME=.. COMMAND is of that command alone. */
static void what_stands_before_a_command_is_its_own(void **state)
{
    static const struct value_case cases[] = {
        {"A=1\nA=2 python x.py\n", "1"},
        {"A=1\nA=2 B=3 python x.py | tee log; B=4\n", "1"},
        {"A=1\nA=2 \\\n  python x.py && B=3\n", "1"},
        {"A=1\nA=2; python x.py\n", "2"},
        {"A=1\nA=2 B=3\n", "2"},
        {"A=1\nA=2 # two\n", "2"},
        {"A=1\nA=2 >log\n", "2"},
        {"A=2 python x.py\nA=${A:-3}\n", "3"},
        {"A=2 python x.py\n", "?"},
        {"A=1\nA=2 bash -c 'cd x; A=3'\n", "1"},
        {"A=1\nf() { B=$A; }\nA=2 f\nA=$A$B\n", "12"},
        {"A=(1 2)\nA=3 python x.py\nA=${A[@]}\n", "1 2"},
    };
    check_values(cases, sizeof cases / sizeof *cases);
}

/* Functions do what they do where they are called. */
static void functions_run_where_they_are_called(void **state)
{
    static const struct value_case cases[] = {
        {"f() { A=4; }\nf\n", "4"},
        {"A=3\nf() {\n  A=4\n}\n", "3"},
        {"A=3\nf() {\n  A=4\n}\nA=5\nf; B=1\n", "4"},
        {"function f {\n  A=4\n}\nfunction g\n{\n  A=5$A\n}\nA=3\ng\nf\ng\n", "54"},
        {"A=3\nf() { local A=4; B=$A; }\nf\nA=$A$B\n", "34"},
        {"A=3\nf() { declare A=4; local B; B=2; }\nf\nA=$A${B:-1}\n", "31"},
        {"A=3\nf() { declare -g A=4; }\nf\n", "4"},
        {"A=3\nf() { A=4; g; }\ng() { local A; A=5; B=$A; }\nf\nA=$A$B\n", "45"},
        {"A=3\nf() ( A=4 )\nf\n", "3"},
        {"A=3\nf() { A=4; }\nf | cat\n", "3"},
        {"A=3\nf() { A=4; }\n(f)\n", "3"},
        {"A=3\nf() { A=4; }\n[ $X ] && f\n", "?"},
        {"A=3\nf() { A=4; }\n[ 1 = 2 ] && f\n", "3"},
        {"A=3\nf() { A=4; }\nretry 3 f\n", "?"},
        {"A=3\n[ $X ] && f() { A=4; }\nf\n", "?"},
        {"A=3\nf() { A=4; return; A=5; }\nf\n", "4"},
        {"A=3\nf() {\n  if [ $X ]; then return; fi\n  A=5\n}\nf\n", "?"},
        {"A=3; B=1\nf() {\n  if [ $B = 2 ]; then return; fi\n  A=5\n}\nf\nC=1\n", "5"},
        {"A=3\nf() { A=4; f; }\nf\n", "4"},
        {"A=3\nf() { f() { A=4; }; A=5; }\nf\n", "5"},
        {"A=3\nf() { A=4; }; g() { f; f; }; h() { g; g; }\nh\n", "4"},
    };
    check_values(cases, sizeof cases / sizeof *cases);
    /* a command in a function has the variables of the call, and without one those before it */
    static const char called[] = "A=3\nrun() {\n  " RUN "--lr $A\n}\nA=4\nrun\n",
                      never[] = "A=3\nrun() {\n  " RUN "--lr $A\n}\nA=4\n",
                      other[] = "old() {\n  " RUN "--lr 1\n}\n" RUN "--lr 2\n";
    assert_string_equal(argument(called, "--lr"), "4");
    assert_int_equal(line, 5);
    assert_string_equal(argument(never, "--lr"), "3");
    assert_string_equal(argument(other, "--lr"), "2");
}

/* $NAME of an array is its first word alone. */
static void an_array_without_brackets_is_its_first_word(void **state)
{
    static const char array[] = "A=(--lr 1 --bf16)\n" RUN "$A --seq-length ${#A}\n",
                      quoted[] = "A=(8 9)\n" RUN "--lr \"$A\" --seq-length $((A + 1))\n",
                      text[] = "A=(1)\nA='--lr 1 --bf16'\n" RUN "$A\n";
    assert_string_equal(argument(array, "--bf16"), "");
    assert_string_equal(argument(quoted, "--lr"), "8");
    assert_string_equal(argument(quoted, "--seq-length"), "9");
    assert_string_equal(argument(text, "--bf16"), "true");
}

/* Without a command of its own, a script may hold one for others to run, or a part of one. */
static void variables_hold_commands(void **state)
{
    static const char whole[] = "A=(--num-layers 12)\nC=\"cd x; python pretrain_gpt.py ${A[@]}\"\n";
    static const char part[] = "A=\"--num-layers 12 \\\n --bf16\"\nB=x\n";
    static const char *const texts[] = {whole, part, "A=\"--lr 3\"\n"};
    assert_string_equal(argument(whole, "--num-layers"), "12");
    assert_string_equal(argument(part, "--bf16"), "true");
    assert_string_equal(argument(texts[2], "--lr"), "");
    for (int i = 0; i < 3; i++) {
        struct s2s_conf *conf = s2s_rules_read_shell(texts[i], strlen(texts[i]), "run.sh");
        assert_int_equal(s2s_conf_key(conf, "PART") != NULL, i == 1);
        s2s_conf_free(conf);
    }
}

/* Lightning's command lines share names with Megatron's */
static void commands_of_other_trainers_are_left_alone(void **state)
{
    assert_string_equal(argument("python t.py --num-layers 4 --devices=2\n", "--num-layers"), "");
    assert_string_equal(argument("python t.py --num-layers 4 --max-steps 5\n", "--num-layers"), "");
}

static void launchers_and_exports_are_the_environment(void **state)
{
    static const char script[] =
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\nNODES=2\n"
        "D=(--nproc_per_node 8 --nnodes $NODES)\n"
        "torchrun ${D[@]} pretrain_gpt.py --num-layers 12 --hidden-size 96 "
        "--num-attention-heads 6 --seq-length 64 --max-position-embeddings 64 "
        "--tensor-model-parallel-size 3\n";
    struct s2s_conf *conf = s2s_rules_read_shell(script, strlen(script), "run.sh");
    struct s2s_report report = S2S_REPORT_INIT;
    assert_int_equal(s2s_dialect_detect(conf), S2S_DIALECT_MLM);
    assert_string_equal(s2s_conf_find(conf, "ENV_VARS.CUDA_DEVICE_MAX_CONNECTIONS")->text, "1");
    assert_int_equal(s2s_rules_check(&report, conf, "run.sh", NULL, NULL), 0);
    assert_int_equal(report.world_size, 16);
    assert_string_equal(report.findings[0].rule->id, "S2S-WLD-001");
    assert_int_equal(report.findings[0].place.line, 4);
    s2s_report_release(&report);
    static const char before[] = "A=1 torchrun pretrain_gpt.py --num-layers 12\nB=1 echo\n";
    conf = s2s_rules_read_shell(before, strlen(before), "run.sh");
    assert_string_equal(s2s_conf_find(conf, "ENV_VARS.A")->text, "1");
    assert_null(s2s_conf_find(conf, "ENV_VARS.B"));
    s2s_conf_free(conf);
    char *argv[] = {"pretrain_gpt.py", "--num-layers=3", "--bf16"};
    conf = s2s_rules_read_argv(argv, 3);
    assert_string_equal(s2s_conf_find(conf, "MODEL_ARGS.--num-layers")->text, "3");
    s2s_conf_free(conf);
}

static int64_t world_size(const char *script)
{
    struct s2s_conf *conf = s2s_rules_read_shell(script, strlen(script), "run.sh");
    struct s2s_report report = S2S_REPORT_INIT;
    assert_int_equal(s2s_rules_check(&report, conf, "run.sh", NULL, NULL), 0);
    int64_t world = report.world_size;
    s2s_report_release(&report);
    return world;
}

static void torchrun_takes_one_node_unless_told(void **state)
{
#define ON " pretrain_gpt.py --num-layers 12\n"
    assert_int_equal(world_size("torchrun --nproc_per_node 8" ON), 8);
    assert_int_equal(world_size("python -m torch.distributed.run --nproc-per-node=4" ON), 4);
    assert_int_equal(world_size("torchrun --nnodes 2 --nproc_per_node 8" ON), 16);
    assert_int_equal(world_size("torchrun --nnodes $1 --nproc_per_node 8" ON), 0);
    assert_int_equal(world_size("torchrun $MORE --nproc_per_node 8" ON), 0);
    assert_int_equal(world_size("export PET_NNODES=4\ntorchrun --nproc_per_node 8" ON), 0);
    assert_int_equal(world_size("PET_NNODES=4 torchrun --nproc_per_node 8" ON), 0);
    assert_int_equal(world_size("env PET_NNODES=4 torchrun --nproc_per_node 8" ON), 0);
    assert_int_equal(world_size("torchrun --nproc_per_node $1" ON), 0);
    assert_int_equal(world_size("torchrun" ON), 0);
    /* started otherwise where BATCH is something else */
    assert_int_equal(world_size("if [[ $BATCH -eq 0 ]]; then\ntorchrun --nproc_per_node 8" ON
                                "else\nsrun sh -c x\nfi\n"),
                     0);
#undef ON
}

static void other_launchers_say_how_many_ranks(void **state)
{
#define ON " pretrain_gpt.py --num-layers 12\n"
    assert_int_equal(world_size("mpirun -np 12 python" ON), 12);
    assert_int_equal(world_size("N=4\nmpirun -np $((N * 8)) -x A=1 python" ON), 32);
    assert_int_equal(world_size("/opt/mpi/bin/mpiexec --n 6 --mca btl ^tcp python" ON), 6);
    assert_int_equal(world_size("mpirun -np $1 python" ON), 0);
    /* after the command that it starts, options are that one's */
    assert_int_equal(world_size("mpirun -np 4 numactl -N 0 python" ON), 4);
    /* mpirun starts torchrun, which starts the ranks */
    assert_int_equal(world_size("mpirun -np 2 torchrun --nnodes 2 --nproc_per_node 8" ON), 16);
    assert_int_equal(world_size("#SBATCH --nodes=4 --ntasks-per-node=1\nmpirun -np 32 python" ON),
                     32);
    assert_int_equal(world_size("srun -n 16 --export=ALL,A=1 python" ON), 16);
    assert_int_equal(world_size("deepspeed --num_gpus 4" ON), 4);
    assert_int_equal(world_size("deepspeed --num_gpus 4 --num_nodes=2" ON), 8);
    assert_int_equal(world_size("deepspeed --hostfile h --num_gpus 4" ON), 0);
    assert_int_equal(world_size("accelerate launch --num_processes 16 --num_machines 2" ON), 16);
    assert_int_equal(world_size("if [ -n \"$X\" ]; then\nmpirun -np 12 python" ON "fi\n"), 0);
#undef ON
}

/* What the launch's environment has under that name; "" if it has none. */
static const char *variable(const char *script, const char *name)
{
    static char text[256];
    struct s2s_conf *conf = s2s_rules_read_shell(script, strlen(script), "run.sh");
    char *path = s2s_xasprintf("ENV_VARS.%s", name);
    const struct s2s_conf *node = s2s_conf_find(conf, path);
    snprintf(text, sizeof text, "%s", node ? node->text : "");
    free(path);
    s2s_conf_free(conf);
    return text;
}

static void launchers_hand_over_variables(void **state)
{
#define ON " python pretrain_gpt.py --num-layers 12\n"
    assert_string_equal(variable("mpirun -np 2 -x A=1 -x B=2" ON, "A"), "1");
    assert_string_equal(variable("mpirun -np 2 -x A=1 -x B=2" ON, "B"), "2");
    assert_string_equal(variable("A=7\nmpirun -x A -np 2" ON, "A"), "7");
    assert_string_equal(variable("A=7\nmpirun -np 2" ON, "A"), "");
    assert_string_equal(variable("mpiexec -genv A 3 -n 2" ON, "A"), "3");
    assert_string_equal(variable("srun --export=ALL,A=1,B=2 -n 2" ON, "B"), "2");
#undef ON
}

/* The first guard that ends the script; "" if none does. */
static const char *guard(const char *script)
{
    static char text[256];
    struct s2s_conf *conf = s2s_rules_read_shell(script, strlen(script), "run.sh");
    const struct s2s_conf *node = s2s_conf_key(conf, "GUARD");
    snprintf(text, sizeof text, "%s", node ? node->text : "");
    s2s_conf_free(conf);
    return text;
}

static void a_guard_that_its_own_numbers_contradict_is_found(void **state)
{
    assert_string_equal(guard("W=72\n[[ $W -eq 264 ]] || exit 1\n"), "72 -eq 264");
    assert_string_equal(guard("W=264\n[[ $W -eq 264 ]] || exit 1\n"), "");
    assert_string_equal(guard("W=72\n[[ $W -eq 264 ]] && exit 1\n"), "");
    assert_string_equal(guard("W=72\n[ \"$W\" != 264 ] && { echo no; exit 1; }\n"), "72 != 264");
    assert_string_equal(guard("W=72\n[ $W = 264 ] || {\n  echo no\n  exit 1\n}\n"), "72 = 264");
    assert_string_equal(guard("W=72\nif [ $W -ne 264 ]; then\n  echo no\n  exit 1\nfi\n"),
                        "72 -ne 264");
    assert_string_equal(guard("W=72\nif (( W*2 != 264 )); then exit 1; fi\n"), "144 != 264");
    assert_string_equal(guard("W=72\nif test $W -eq 264; then A=1; else exit 0; fi\n"), "");
    assert_string_equal(guard("[[ $W -eq 264 ]] || exit 1\n"), "");
    assert_string_equal(guard("W=7\n[[ $W -eq 8 ]] || echo no\nexit 0\n"), "");
    assert_string_equal(guard("W=7\n[[ $W -ne 8 ]] && [[ $1 == x ]] && exit 0\n"), "");
    assert_string_equal(guard("W=7\nif [ $W -ne 8 ]; then\n if [ -z $X ]; then exit 1; fi\nfi\n"),
                        "");
    assert_string_equal(guard("#SBATCH -N 4 --ntasks-per-node=8\n[ $SLURM_NTASKS -eq 32 ] || exit\n"
                              "(( SLURM_NNODES == 3 )) || exit 1\n"),
                        "4 == 3");
}

static void a_batch_script_says_how_many_ranks_there_are(void **state)
{
    static const char script[] = "#!/bin/bash\n#SBATCH --nodes=9\n#SBATCH --ntasks-per-node 8\n"
                                 "#SBATCH --gres=gpu:h100:8\n"
                                 "export LLM_TP=2 LLM_DP=32; ENCODER_DP=8\nsrun bash run.sh\n";
    struct s2s_conf *conf = s2s_rules_read_shell(script, strlen(script), "run.sbatch");
    assert_int_equal(s2s_dialect_detect(conf), S2S_DIALECT_HET);
    assert_string_equal(s2s_conf_find(conf, "BATCH.world")->text, "72");
    assert_string_equal(s2s_conf_find(conf, "BATCH.gpus_per_node")->text, "8");
    assert_string_equal(s2s_conf_find(conf, "MODEL_ARGS.--llm-dp")->text, "32");
    assert_int_equal(s2s_conf_find(conf, "MODEL_ARGS.--llm-dp")->place.line, 5);
    s2s_conf_free(conf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_variables_and_arrays_become_flags),
        cmocka_unit_test(what_a_script_decides_at_run_time_is_unknown),
        cmocka_unit_test(a_script_inside_a_script_is_read),
        cmocka_unit_test(what_a_condition_adds_is_in_doubt),
        cmocka_unit_test(branches_are_taken_where_the_text_decides),
        cmocka_unit_test(lists_groups_and_sums_are_followed),
        cmocka_unit_test(the_branch_of_a_case_is_taken_where_the_text_decides),
        cmocka_unit_test(what_stands_before_a_command_is_its_own),
        cmocka_unit_test(functions_run_where_they_are_called),
        cmocka_unit_test(an_array_without_brackets_is_its_first_word),
        cmocka_unit_test(variables_hold_commands),
        cmocka_unit_test(commands_of_other_trainers_are_left_alone),
        cmocka_unit_test(launchers_and_exports_are_the_environment),
        cmocka_unit_test(torchrun_takes_one_node_unless_told),
        cmocka_unit_test(other_launchers_say_how_many_ranks),
        cmocka_unit_test(launchers_hand_over_variables),
        cmocka_unit_test(a_guard_that_its_own_numbers_contradict_is_found),
        cmocka_unit_test(a_batch_script_says_how_many_ranks_there_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
