/* What is wrong with the text of a config: syntax, references, flags, values that replace others.
 */
#include "lib/rules/rules_internal.h"

#define MEGATRON (S2S_DIALECT_MLM | S2S_DIALECT_HET)
#define ERROR S2S_SEVERITY_ERROR
#define WARNING S2S_SEVERITY_WARNING
#define INFO S2S_SEVERITY_INFO

const struct s2s_rule rules_cfg[] = {
    {
        .id = "S2S-CFG-001",
        .dialects = S2S_DIALECT_ALL,
        .severity = ERROR,
        .message = "syntax error",
        .fix = "mend the file at the place shown",
        .why = "The file cannot be parsed; nothing else can be said about it (exit status 2).",
        .source = "YAML 1.1, JSON",
    },
    {
        .id = "S2S-CFG-002",
        .dialects = S2S_DIALECT_SLM | S2S_DIALECT_RL,
        .severity = ERROR,
        .message = "an interpolation that cannot be resolved",
        .fix = "mend its path",
        .why = "OmegaConf raises when the value is read.",
        .source = "OmegaConf",
    },
    {
        .id = "S2S-CFG-003",
        .dialects = S2S_DIALECT_ALL,
        .severity = WARNING,
        .message = "a key stands twice in one map",
        .fix = "remove one",
        .why = "The later one wins silently, or the loader refuses the file.",
        .source = "PyYAML keeps the last, OmegaConf and s2s-train raise",
    },
    {
        .id = "S2S-CFG-004",
        .dialects = S2S_DIALECT_ALL,
        .severity = ERROR,
        .message = "a value of the wrong type",
        .fix = "write a value of the type that is expected",
        .why = "The program that reads the config fails on it, often much later.",
        .source = "-",
    },
    {
        .id = "S2S-CFG-005",
        .dialects = S2S_DIALECT_SLM | S2S_DIALECT_RL,
        .severity = INFO,
        .message = "??? must be replaced before the launch",
        .fix = "set it",
        .why = "OmegaConf raises MissingMandatoryValue when it is read. With --launch this is an "
               "error.",
        .source = "OmegaConf",
    },
    {
        .id = "S2S-CFG-006",
        .dialects = S2S_DIALECT_RL,
        .severity = ERROR,
        .message = "a parent that is not there",
        .fix = "mend the path, or check the file where its parents are",
        .why = "The config cannot be composed; what its parents say is not known.",
        .source = "nemo_rl/utils/config.py:load_config_with_inheritance",
    },
    {
        .id = "S2S-CFG-007",
        .dialects = MEGATRON,
        .severity = WARNING,
        .message = "an argument that Megatron-LM does not have, close to one that it has",
        .fix = "write its whole name",
        .why = "The parser takes whole names only, and ends on others.",
        .source = "megatron/training/arguments.py: allow_abbrev=False",
    },
    {
        .id = "S2S-CFG-009",
        .dialects = S2S_DIALECT_MLM | S2S_DIALECT_SLM,
        .severity = WARNING,
        .message = "a number that stays text where it is read",
        .fix = "write it as a float: 1.0e-5, without quotes",
        .why = "PyYAML wants a dot and a signed exponent, and nobody reads numbers out of quotes: "
               "comparisons are made with text.",
        .source = "YAML 1.1 as PyYAML reads it",
    },
    {
        .id = "S2S-CFG-010",
        .dialects = S2S_DIALECT_SLM | S2S_DIALECT_RL,
        .severity = ERROR,
        .message = "an override of a key that does not exist",
        .fix = "++KEY=VALUE adds it; or mend the name",
        .why = "Hydra's configs are closed: an override without + of a key that is in no file is "
               "an error of the launch, most often a misspelt name.",
        .source = "NVIDIA-NeMo/RL nemo_rl/utils/config.py:parse_hydra_overrides",
    },
    {
        .id = "S2S-CFG-011",
        .dialects = S2S_DIALECT_ALL,
        .severity = INFO,
        .message = "a value is replaced by a later source",
        .fix = "",
        .why = "The last of --set, --env, a repeated flag and the file counts; both places are "
               "shown.",
        .source = "-",
    },
    {
        .id = "S2S-CFG-012",
        .dialects = S2S_DIALECT_MLM,
        .severity = INFO,
        .message = "a section of the file runs on its own number of GPUs",
        .fix = "",
        .why = "The rules look at the first section with the ranks of the file.",
        .source = "tests/functional_tests: MODEL_ENV_VARS",
    },
    {
        .id = "S2S-CFG-013",
        .dialects = S2S_DIALECT_AM | S2S_DIALECT_RL | S2S_DIALECT_SLM,
        .severity = INFO,
        .message = "an environment variable that is not given and has no default",
        .fix = "give a default, or say its value with --env",
        .why = "The loader raises KeyError where the variable is missing. With --launch this is an "
               "error.",
        .source =
            "nemo_automodel/components/config/loader.py:resolve_yaml_env_vars; OmegaConf oc.env",
    },
    {
        .id = "S2S-CFG-014",
        .dialects = MEGATRON,
        .severity = INFO,
        .message = "a variable of the script decides how many ranks there are",
        .fix = "set it to what the parallel sizes need",
        .why = "A template says one node; it is to be edited before the launch. Shown beside "
               "S2S-WLD-001, -002 and -003.",
        .source = "example scripts of Megatron-LM",
    },
    {
        .id = "S2S-CFG-015",
        .dialects = S2S_DIALECT_ALL,
        .severity = INFO,
        .message = "a suppression comment that silences nothing",
        .fix = "remove it",
        .why = "It would hide the next finding there.",
        .source = "-",
    },
    RULES_END,
};
