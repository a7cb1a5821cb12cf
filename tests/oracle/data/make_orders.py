"""Writes orders/NAME.txt: the first samples of orders/NAME.yaml in the order that NeMo's own loaders over Lhotse give them; what is said before a text stands
before it, with tabs between.

    make_orders.py FOLDER     FOLDER: a checkout of NeMo; needs lhotse, omegaconf, cytoolz, braceexpand, soundfile
"""
import glob
import importlib
import itertools
import os
import sys
import tempfile
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import make_data  # noqa: E402

N_SAMPLES = 150


def module(name, **members):
    m = types.ModuleType(name)
    m.__path__ = []
    m.__dict__.update(members)
    sys.modules[name] = m
    return m


def load_nemo(folder):
    """The loaders alone: what they import beside Lhotse is not needed to draw samples."""
    import logging

    import braceexpand

    def expand(paths, **kwargs):
        if not isinstance(paths, str):
            return paths
        for old, new in (("(", "{"), ("[", "{"), ("<", "{"), ("_OP_", "{"), (")", "}"), ("]", "}"), (">", "}"), ("_CL_", "}")):
            paths = paths.replace(old, new)
        return list(braceexpand.braceexpand(paths, escape=False))

    def get_full_path(audio_file, manifest_file=None, **kwargs):
        return os.path.join(os.path.dirname(manifest_file), audio_file)

    for name in ("nemo", "nemo.collections", "nemo.collections.asr", "nemo.collections.asr.data", "nemo.collections.common",
                 "nemo.collections.common.data", "nemo.collections.common.parts", "nemo.collections.common.parts.preprocessing",
                 "nemo.collections.common.tokenizers"):
        module(name)
    module("nemo.utils", logging=logging)
    module("nemo.utils.data_utils", is_datastore_path=lambda p: False)
    module("nemo.collections.asr.data.audio_to_text", expand_sharded_filepaths=expand)
    module("nemo.collections.common.parts.preprocessing.manifest", get_full_path=get_full_path)
    module("nemo.collections.common.data.prompt_fn", apply_prompt_format_fn=None, registered_prompt_format_fn=lambda *a: lambda f: f)
    module("nemo.collections.common.tokenizers.aggregate_tokenizer", TokenizerWrapper=object)
    module("nemo.collections.common.data.lhotse").__path__ = [os.path.join(folder, "nemo/collections/common/data/lhotse")]
    return importlib.import_module("nemo.collections.common.data.lhotse.cutset")


def complete(items):
    """Keys that the loaders look up without a default."""
    for item in items:
        item.setdefault("language", None)
        item.setdefault("audio_placeholders", None)
        complete(item.get("input_cfg") or [])


def reweight(items, temperatures, level=0):
    """What later releases do before they draw: w_i^T / sum of w_j^T."""
    t = temperatures[level if len(temperatures) > 1 else 0]
    powers = [item.weight ** t for item in items]
    for item, power in zip(items, powers):
        item.weight = power / sum(powers)
        if "input_cfg" in item:
            reweight(item.input_cfg, temperatures, level + 1)


def text_of(sample):
    if hasattr(sample, "supervisions"):
        said = [sample.custom[k] for k in ("system_prompt", "context") if k in (sample.custom or {})]
        return "\t".join(said + [sample.supervisions[0].text])
    if hasattr(sample, "source"):
        asked = [] if sample.question is None else [sample.question.text]
        return "\t".join(asked + [sample.source.text, sample.target.text])
    if hasattr(sample, "turns"):
        return "\t".join(t.value for t in sample.turns if hasattr(t, "value"))
    if hasattr(sample, "data"):
        return sample.data["conversations"][-1]["value"]
    return sample.text.strip()


def main():
    cutset = load_nemo(os.path.abspath(sys.argv[1]))
    from omegaconf import OmegaConf

    for path in sorted(glob.glob(os.path.join(HERE, "orders", "*.yaml"))):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            make_data.main()
            config = OmegaConf.load(path)
            complete(config.input_cfg)
            if "reweight_temperature" in config:
                reweight(config.input_cfg, config.reweight_temperature)
            config.audio_locator_tag = "<audio>"
            config.token_equivalent_duration = 0.08
            cuts, _ = cutset.read_cutset_from_config(config)
            texts = [text_of(s) for s in itertools.islice(cuts, N_SAMPLES)]
            # a pair of which one is empty is drawn, but no sample of ours
            texts = [t if all(t.split("\t")[-2:]) else "" for t in texts]
            os.chdir("/")
        with open(path[:-len("yaml")] + "txt", "w") as f:
            f.writelines(t + "\n" for t in texts)
        print(os.path.basename(path), len(texts))


if __name__ == "__main__":
    main()
