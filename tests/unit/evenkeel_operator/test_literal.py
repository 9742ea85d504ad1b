"""Values of users are plain text wherever a template language reads them."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from evenkeel_operator.core.literal import Language, literal
from evenkeel_operator.manifests.engine import engine_deployment
from evenkeel_operator.manifests.monitoring import alert_groups, rule_file
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.build_contexts import sample_context
from tests.support.promtool import promtool

ODD = ["{{", "{{{", "}}", "{{ $value }}", '{{ query "up" }}', "{{-", "{{/* x */}}", "{{`", "{", '"']
VALUES = st.lists(
    st.one_of(
        st.lists(st.sampled_from([*ODD, "a", " "]), min_size=1, max_size=6).map("".join),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES)
@example(ODD)
@example(["\x00", "\x7f", "\x85", "\u2028", "\ufeff", "\ufffe", "\U0001f600"])
def test_prometheus_shows_every_label_value_as_it_is_in_the_spec(values: list[str]) -> None:
    given_labels = {f"l{number}": value for number, value in enumerate(values)}
    context = sample_context("gpu.yaml", slo={"alertLabels": given_labels})
    labels = alert_groups(context)[0]["rules"][0]["labels"]
    rule = {"alert": "Any", "expr": "vector(1)", "labels": labels}
    test = {
        "interval": "1m",
        "alert_rule_test": [
            {
                "eval_time": "1m",
                "alertname": "Any",
                "exp_alerts": [{"exp_labels": {**labels, **given_labels}}],
            }
        ],
    }
    with TemporaryDirectory() as folder:
        rules, tests = Path(folder, "rules.yaml"), Path(folder, "test.yaml")
        rules.write_text(rule_file([{"name": "any", "rules": [rule]}]))
        tests.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [test]}))
        code, said = promtool("test", "rules", tests)
    assert code == 0, said


def test_prometheus_accepts_the_rules_of_a_service_with_half_a_template(tmp_path: Path) -> None:
    context = sample_context("gpu.yaml", slo={"alertLabels": {"team": "{{"}})
    (tmp_path / "rules.yaml").write_text(rule_file(alert_groups(context)))
    code, said = promtool("check", "rules", tmp_path / "rules.yaml")
    assert code == 0, said


def expanded(argument: str) -> str:
    """As Kubernetes expands arguments: `$$` is `$`, `$(NAME)` a variable, and any other `$` itself
    (third_party/forked/golang/expansion/expand.go)."""
    return re.sub(
        r"\$\$|\$\((.*?)\)",
        lambda m: "$" if m[0] == "$$" else f"<{m[1]}>",
        argument,
        flags=re.DOTALL,
    )


@given(st.lists(st.sampled_from(["$", "(", ")", "$(KEY)", "x"]), max_size=12).map("".join))
def test_kubernetes_replaces_nothing_in_a_literal_argument(text: str) -> None:
    assert expanded(literal(text, Language.POD_ARGUMENT)) == text


@pytest.mark.parametrize("sample", ["gpu.yaml", "vllm.yaml", "simulator.yaml"])
def test_the_name_of_a_model_does_not_show_the_key_of_its_engines(sample: str) -> None:
    name = "$(EVENKEEL_ENGINE_KEY)"
    context = sample_context(sample, model={"source": f"file:///m/{name}", "servedName": name})
    pod = engine_deployment(context, replicas=1)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    values = [*container["args"], *(item["value"] for item in container["env"] if "value" in item)]
    shown = [one for one in map(expanded, values) if "<EVENKEEL_ENGINE_KEY>" in one]
    assert shown == ["--api-key=<EVENKEEL_ENGINE_KEY>"]
    assert any(name in one for one in map(expanded, values))
