"""Every prompt is rendered and counted, and a tokenizer or a budget that cannot carry a call is refused."""

from pathlib import Path

import pytest
from start_of_a_run import config, dataset, model_folder, save_tokenizer

from atlas_rl.cli.dataset_files import DatasetFile, read_datasets
from atlas_rl.cli.prompts import (
    Protocol,
    check_prompts,
    check_response_budget,
    check_vocabulary,
    grammars,
    load_protocol,
)
from atlas_rl.errors import ConfigError, DataError, GrammarError
from atlas_rl.tasks.benchmark import load_benchmark

URN = {"urn": load_benchmark("urn")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model_folder(path)
    save_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def protocol(folder: Path) -> Protocol:
    return load_protocol(config(), folder, enable_thinking=False)


def loading_refusal(folder: Path, error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        load_protocol(config(), folder, enable_thinking=False)
    return str(caught.value)


def test_a_tokenizer_without_a_tool_token_is_refused(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, without="</tool_call>")
    assert loading_refusal(tmp_path, GrammarError) == (
        f"{tmp_path}: tokenizer has no single token for '</tool_call>', so ordinary tokens would open a call; add it "
        "with tokenizer.add_tokens(['</tool_call>']) and resize the model's embeddings"
    )


def test_a_tokenizer_that_cannot_be_loaded_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    message = loading_refusal(tmp_path, ConfigError)
    assert message.startswith(f"{tmp_path}: its tokenizer cannot be loaded: ")
    assert "\n" not in message


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, template="")
    assert loading_refusal(tmp_path, ConfigError) == (
        f"{tmp_path}: its tokenizer has no chat template; add chat_template.jinja or set "
        "actor_rollout_ref.model.custom_chat_template"
    )


def test_a_template_given_in_the_configuration_is_the_one_that_counts(folder: Path) -> None:
    custom = (folder / "chat_template.jinja").read_text().replace("<tools>", "<these tools>")
    given = config(**{"actor_rollout_ref.model.custom_chat_template": custom})
    template = load_protocol(given, folder, enable_thinking=False).template
    assert "<these tools>" in template.decode(template.prompt_ids([{"role": "user", "content": "q"}], [{"a": 1}]))


def test_a_model_without_an_embedding_for_every_token_is_refused(protocol: Protocol, folder: Path) -> None:
    highest = max(protocol.tokenizer.get_vocab().values())
    check_vocabulary(protocol, folder, highest + 1)
    with pytest.raises(ConfigError) as caught:
        check_vocabulary(protocol, folder, highest)
    assert str(caught.value) == (
        f"{folder}/config.json: vocab_size={highest}, but the tokenizer has token ids up to {highest}; "
        "resize the model's embeddings"
    )


def test_a_response_budget_that_cannot_hold_a_submit_is_refused(protocol: Protocol) -> None:
    grammar = grammars(URN, protocol)
    needed = len(protocol.template.encode_text('\n{"name": "submit", "arguments": {"answer": "A"}}\n')) + 3
    check_response_budget(config(**{"data.max_response_length": needed}), grammar, protocol)
    with pytest.raises(ConfigError) as caught:
        check_response_budget(config(**{"data.max_response_length": needed - 1}), grammar, protocol)
    assert str(caught.value) == (
        f"data.max_response_length={needed - 1} cannot hold one call of benchmark_spec 'urn', which takes {needed} "
        "tokens at least; raise it"
    )


def test_a_schema_that_no_grammar_enforces_is_named(protocol: Protocol) -> None:
    urn = URN["urn"]
    loose = urn.submit.model_copy(update={"parameters": {**urn.submit.parameters, "additionalProperties": True}})
    with pytest.raises(GrammarError, match=r"^benchmark_spec 'loose\.yaml': .*additionalProperties"):
        grammars({"loose.yaml": urn.model_copy(update={"submit": loose})}, protocol)


def files_of(tmp_path: Path, *questions: str) -> list[DatasetFile]:
    """Two files whose last rows ask ``questions``."""
    one, two = dataset(tmp_path / "1.parquet", 2), dataset(tmp_path / "2.parquet", 3)
    first, second = read_datasets(config(**{"data.train_files": [one, two]}), "data.train_files")
    asked = tuple(("urn", [second.openings[0][1][0], {"role": "user", "content": text}]) for text in questions)
    openings = second.openings[: 3 - len(asked)] + asked
    return [first, DatasetFile(path=second.path, sha256=second.sha256, openings=openings)]


def test_prompts_are_counted_with_template_and_tools(protocol: Protocol, tmp_path: Path) -> None:
    files = files_of(tmp_path, "which?")
    urn = URN["urn"]
    tools = [urn.explore.openai, urn.submit.openai]
    whole = [protocol.template.prompt_ids(opening, tools) for file in files for _, opening in file.openings]
    assert check_prompts(config(), files, URN, protocol) == max(map(len, whole))
    assert "<tools>" in protocol.template.decode(whole[0])


def test_a_prompt_over_the_limit_is_refused_not_truncated(protocol: Protocol, tmp_path: Path) -> None:
    files = files_of(tmp_path, "x" * 100, "y" * 200)
    urn = URN["urn"]
    tools = [urn.explore.openai, urn.submit.openai]
    short, long, longest = (len(protocol.template.prompt_ids(files[1].openings[i][1], tools)) for i in (0, 1, 2))
    assert (long - short, longest - long) == (100 - len(files[1].openings[0][1][1]["content"]), 100)
    with pytest.raises(DataError) as caught:
        check_prompts(config(**{"data.max_prompt_length": long - 1}), files, URN, protocol)
    assert str(caught.value) == (
        f"{files[1].path} row 1: its prompt has {long} tokens, data.max_prompt_length={long - 1}; raise that to at "
        f"least {longest}, or drop the 2 row(s) that are over it: no prompt is truncated"
    )
    assert check_prompts(config(**{"data.max_prompt_length": longest}), files, URN, protocol) == longest


def test_a_question_that_cannot_be_encoded_is_named(protocol: Protocol, tmp_path: Path) -> None:
    files = files_of(tmp_path, "\ud800")
    with pytest.raises(DataError, match=r"2\.parquet row 2: .*cannot be encoded") as caught:
        check_prompts(config(), files, URN, protocol)
    assert "\n" not in str(caught.value)


def test_many_rows_show_a_bar_and_few_do_not(
    protocol: Protocol, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    (first, second) = files_of(tmp_path)
    check_prompts(config(), [first], URN, protocol)
    assert capsys.readouterr().err == ""
    many = DatasetFile(path="many", sha256="", openings=second.openings * 700)
    check_prompts(config(), [many], URN, protocol)
    assert "prompts" in capsys.readouterr().err
