"""Training low-rank adapters: what is trained, what the forward pass and the engine see, what is saved."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from example_batch import BATCH, TEMPERATURE, update
from runs import TASK, assert_two_and_two_steps_equal_four, same, steps
from sequence_truth import relative_error, rows, tiny_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from stages import train as train_stage
from tuneloop import machine
from tuneloop.errors import UserError
from tuneloop.params import LoraParams, Params
from tuneloop.policies.adapters import adapters_off, merged_state
from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.policy import load_policy
from tuneloop.policies.presets import LoraTargets
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs
from tuneloop.rollout.ask import Asker
from tuneloop.rollout.contract import Sampling
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.training.lora import PROJECTIONS, add_adapters
from tuneloop.training.trainer import Trainer

peft = pytest.importorskip("peft")

LORA = LoraParams(rank=3, alpha=6.0)
DENSE = LoraTargets(modules=PROJECTIONS, parameters=())
PROMPT, REPLY = BATCH[0].prompt, BATCH[0].replies[1]


def adapted(seed: int = 0) -> PreTrainedModel:
    """The tiny model with adapters that change it: B starts at 0, so here it is drawn."""
    model = tiny_model()
    add_adapters(model, LORA, DENSE, seed)
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            noise = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
            parameter.data = 0.3 * noise
    return model


def scored(model: PreTrainedModel) -> torch.Tensor:
    tree = prompt_tree([g.prompt for g in BATCH], [g.replies for g in BATCH])
    return reply_logprobs(DenseDecoder(model), tree, TEMPERATURE)[0]


# The forward pass


def test_new_adapters_change_nothing_and_they_alone_are_trained() -> None:
    plain, model = tiny_model(), tiny_model()
    add_adapters(model, LORA, DENSE, seed=1)
    assert torch.equal(scored(plain), scored(model))
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 2 * len(PROJECTIONS), "A and B of seven projections in two layers"
    assert all(".lora_" in name for name in trained)
    assert all(p.abs().max() == 0 for name, p in trained.items() if "lora_B" in name)
    again = tiny_model()
    add_adapters(again, LORA, DENSE, seed=1)
    assert same(model.state_dict(), again.state_dict()), "A comes from the seed"


def test_the_forward_pass_of_our_own_computes_what_pefts_modules_do() -> None:
    model = adapted()
    theirs = [rows(model, g.prompt, reply, TEMPERATURE)[range(len(reply)), reply] for g in BATCH for reply in g.replies]
    assert relative_error([scored(model)], [torch.cat(theirs)]) < 1e-12
    assert relative_error([scored(model)], [scored(tiny_model())]) > 1e-2, "else the adapters do nothing"


def test_the_gradient_of_an_update_is_the_one_through_pefts_modules() -> None:
    model = adapted()
    update(model, "gspo")
    found = [p.grad for p in model.parameters() if p.requires_grad]
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
    model.zero_grad(set_to_none=True)
    # The derivative of Σ log p in both: autograd through transformers' forward pass, a reply at a time.
    sum(rows(model, g.prompt, r, TEMPERATURE)[range(len(r)), r].sum() for g in BATCH for r in g.replies).backward()
    theirs = [p.grad.clone() for p in model.parameters() if p.requires_grad]
    model.zero_grad(set_to_none=True)
    scored(model).sum().backward()
    ours = [p.grad for p in model.parameters() if p.requires_grad]
    assert relative_error(ours, theirs) < 1e-12
    assert all(gradient.abs().max() > 0 for gradient in found)


def test_switched_off_adapters_leave_the_base_policy_and_come_back() -> None:
    model = adapted()
    before = scored(model)
    with adapters_off(model):
        assert torch.equal(scored(model), scored(tiny_model()))
    assert torch.equal(scored(model), before)
    assert all(p.requires_grad == (".lora_" in name) for name, p in model.named_parameters())


def test_the_merged_state_is_that_of_a_plain_model_that_computes_the_same() -> None:
    model, plain = adapted(), tiny_model()
    state = merged_state(model)
    assert state.keys() == plain.state_dict().keys()
    plain.load_state_dict(state)
    assert torch.equal(scored(plain), scored(model))
    assert same(merged_state(plain), plain.state_dict()), "a model without adapters is what it is"


def test_the_engine_samples_from_the_merged_weights() -> None:
    model, plain = adapted(), tiny_model()
    plain.load_state_dict(merged_state(model))
    sampling = Sampling(max_new_tokens=6)
    prompts, seeds = [g.prompt for g in BATCH], [[i, i + 100] for i in range(len(BATCH))]
    replies = [TorchEngine(m, [2]).generate(prompts, seeds, sampling) for m in (model, plain, tiny_model())]
    assert replies[0] == replies[1] != replies[2]


def test_layers_that_the_forward_pass_would_not_see_adapters_on_are_refused() -> None:
    with pytest.raises(UserError, match=r"train\.lora: lm_head cannot be adapted here"):
        add_adapters(tiny_model(), LORA, LoraTargets(modules=("q_proj", "lm_head"), parameters=()), seed=0)
    with pytest.raises(UserError, match=r"train\.lora: this model cannot be adapted .*w_nowhere"):
        add_adapters(tiny_model(), LORA, LoraTargets(modules=("w_nowhere",), parameters=()), seed=0)


# The trainer


@pytest.fixture
def start_adapted(
    tiny_params: Callable[..., Params], tiny_records: tuple[list, list], tiny_policy: Path
) -> Callable[..., Trainer]:
    def begin(changes: Mapping[str, Any] = {}) -> Trainer:
        params = tiny_params({"train.lora.rank": 4, "train.lora.alpha": 8, "train.lr": 1e-2} | dict(changes))
        policy = load_policy(tiny_policy, machine.prepare(1))
        add_adapters(policy.model, params.train.lora, DENSE, params.seed)
        engine = TorchEngine(policy.model, policy.end_ids)
        return Trainer(Asker(policy, engine, TASK), engine, *tiny_records, params.train, params.rollout, params.seed)

    return begin


def test_a_run_that_resumes_equals_one_that_does_not_and_its_state_holds_the_adapters_alone(
    start_adapted: Callable[..., Trainer], tmp_path: Path, tiny_policy: Path
) -> None:
    whole = assert_two_and_two_steps_equal_four(start_adapted, tmp_path)
    assert all(".lora_" in name for name in whole.state()["model"])
    base = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32).state_dict()
    kept = {n.replace(".base_layer", ""): v for n, v in whole.model.state_dict().items() if ".lora_" not in n}
    assert same(kept, dict(base)), "the weights under the adapters never move"
    assert all(row["engine_gap_mean"] < 1e-5 for row in whole.tables.history), "the engine has what is trained"


def test_the_kl_term_measures_against_the_model_without_adapters(start_adapted: Callable[..., Trainer]) -> None:
    trainer = start_adapted({"train.kl_coefficient": 0.2, "train.updates_per_step": 1, "train.steps": 3})
    kl = [row["kl"] for row in steps(trainer)]
    assert trainer.base is None, "no second copy of the weights"
    # Adapters that do nothing yet: the same numbers twice, up to how W + 0 is summed.
    assert kl[0] == pytest.approx(0, abs=1e-9)
    assert kl[2] > 1e-6


# The stage


def test_the_stage_saves_the_merged_policy_and_the_adapter_and_a_second_start_merges_nothing_twice(
    workspace: Path, write_params: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    write_params(workspace, {"train.lora.rank": 4, "train.lora.alpha": 8, "train.lr": 1e-2, "train.steps": 2})
    monkeypatch.chdir(workspace)
    policy, base = workspace / "data/train/policy", workspace / "data/policy/model"
    assert train_stage.main() == 0
    first = (policy / "model.safetensors").read_bytes()
    weights = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    assert not any("lora" in name for name in weights.state_dict())
    assert json.loads((policy / "adapter" / "adapter_config.json").read_text())["r"] == 4

    # peft itself, over the base policy, computes what the merged policy does.
    over = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), policy / "adapter"
    )
    ids = torch.tensor([[5, 9, 30, 40]])
    with torch.no_grad():
        merged, theirs = weights(ids).logits, over(ids).logits
        untrained = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)(ids).logits
    assert relative_error([theirs], [merged]) < 1e-5
    assert relative_error([untrained], [merged]) > 1e-3

    shutil.rmtree(workspace / "data/train")  # as DVC does before it runs a stage again
    capsys.readouterr()
    assert train_stage.main() == 0
    assert "continuing after step 2 of 2" in capsys.readouterr().out
    assert (policy / "model.safetensors").read_bytes() == first


def test_a_missing_peft_is_said_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(UserError, match=r"train\.lora\.rank=3: the package peft is not installed; install it with"):
        add_adapters(copy.deepcopy(tiny_model()), LORA, DENSE, seed=0)
