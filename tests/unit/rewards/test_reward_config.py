import json
from decimal import Decimal

import pytest

from atlas_rl.errors import ConfigError
from atlas_rl.rewards.config import Preset, ProcessMode, RewardConfig
from atlas_rl.rewards.exact import Prices


@pytest.mark.parametrize(
    ("preset", "per_explore", "per_dollar"),
    [
        (Preset.EXPLORE_0_01, Decimal("0.01"), Decimal(0)),
        (Preset.DOLLAR_0_1, Decimal(0), Decimal("0.1")),
        (Preset.BOTH, Decimal("0.02"), Decimal("0.1")),
    ],
)
def test_each_preset_stands_for_its_exact_prices(preset: Preset, per_explore: Decimal, per_dollar: Decimal) -> None:
    config = RewardConfig(preset=preset)
    assert config.objective_prices == config.utility_prices == Prices(per_explore, per_dollar)


def test_custom_takes_the_given_prices_and_utility_may_have_its_own() -> None:
    config = RewardConfig(
        preset=Preset.CUSTOM, per_explore=Decimal("0.1"), per_dollar=Decimal(2), utility_per_dollar=Decimal(3)
    )
    assert config.objective_prices == Prices(Decimal("0.1"), Decimal(2))
    assert config.utility_prices == Prices(Decimal("0.1"), Decimal(3))


def test_a_float_in_yaml_means_the_decimal_that_it_shows() -> None:
    config = RewardConfig.from_mapping(
        {"preset": "custom", "per_explore": 0.1, "per_dollar": "0.3", "potentials": {"zero": 0.5}}
    )
    assert config.objective_prices == Prices(Decimal("0.1"), Decimal("0.3"))
    assert config.potentials == (("zero", Decimal("0.5")),)


def test_a_config_survives_json() -> None:
    config = RewardConfig(
        preset=Preset.BOTH, utility_per_explore=Decimal("0.030"), format_score=Decimal("0.05"),
        overlong_penalty=Decimal("0.2"), overlong_from_tokens=100, potentials=(("zero", Decimal("1.5")),),
    )  # fmt: skip
    assert RewardConfig.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config


def test_process_modes_have_fixed_codes() -> None:
    assert {mode.value: mode.code for mode in ProcessMode} == {"terminal": 0, "potential": 1}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"preset": "cheap"}, "reward.preset='cheap' is not known; use one of: explore_0.01, dollar_0.1, both, custom"),
        ({"process_mode": "dense"}, "reward.process_mode='dense'"),
        ({"per_explor": 1}, "reward.per_explor is no key"),
        ({"preset": "custom", "per_explore": 1}, "needs reward.per_explore and reward.per_dollar"),
        ({"preset": "both", "per_explore": "0.02"}, "reward.per_explore=0.02 is given beside reward.preset=both"),
        ({"format_score": -1}, "reward.format_score must be a finite Decimal of at least 0"),
        ({"format_score": "NaN"}, "reward.format_score"),
        ({"format_score": True}, "reward.format_score must be a number, got True"),
        ({"format_score": "much"}, "reward.format_score must be a number, got 'much'"),
        ({"format_score": None}, "reward.format_score"),
        ({"utility_per_dollar": float("inf")}, "reward.utility_per_dollar"),
        ({"overlong_penalty": 1}, "reward.overlong_penalty=1 never applies; set reward.overlong_from_tokens"),
        ({"overlong_from_tokens": 0}, "reward.overlong_from_tokens must be a whole number"),
        ({"overlong_from_tokens": 1.5}, "reward.overlong_from_tokens must be a whole number"),
        ({"potentials": {"zero": "inf"}}, "reward.potentials.zero"),
        ({"potentials": [["zero", 1], ["zero", 2]]}, "reward.potentials names a part twice"),
        ({"potentials": "zero"}, "reward.potentials must map part names to weights"),
        ({"potentials": {"zero": 1}, "process_mode": "terminal"}, "have no place in reward.process_mode=terminal"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_its_dotted_name(values: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RewardConfig.from_mapping(values)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_constructor_takes_no_bare_words() -> None:
    with pytest.raises(ConfigError, match=r"RewardConfig\.from_mapping"):
        RewardConfig(preset="both")  # type: ignore[arg-type]
