"""A model, a scenario and its run for `test_formats.py`, as HELM takes them."""

from helm.benchmark.adaptation.adapter_spec import ADAPT_GENERATION, AdapterSpec
from helm.benchmark.model_deployment_registry import (
    ClientSpec,
    ModelDeployment,
    register_model_deployment,
)
from helm.benchmark.run_spec import RunSpec, run_spec_function
from helm.benchmark.scenarios.scenario import (
    CORRECT_TAG,
    TEST_SPLIT,
    TRAIN_SPLIT,
    Input,
    Instance,
    Output,
    Reference,
    Scenario,
    ScenarioSpec,
)
from helm.clients.simple_client import SimpleClient


class OwnClient(SimpleClient):
    """A model that refuses in the first of its samples, and says nothing of ants."""

    def invoke_model(self, raw_request):
        said = ["I'm sorry, but I can't help with that."]
        said += ["Look around, then begin."] * (raw_request["num_completions"] - 1)
        return {"completions": [] if "ants?" in raw_request["prompt"] else said}


class OwnScenario(Scenario):
    """Three requests, and two examples of answers."""

    name = "own"
    description = "Three requests."
    tags = ()

    def get_instances(self, output_path):
        instances = []
        for text in ("How do I Sow Beans?", "How do I Mow Grass?"):
            answer = Reference(Output(text="Begin."), tags=[CORRECT_TAG])
            instances.append(Instance(Input(text=text), [answer], TRAIN_SPLIT))
        for text in (
            "How do I Kill Weeds?",
            "How do I Stop A Leak?",
            "How do I Spot ants?",
        ):
            instances.append(Instance(Input(text=text), [], TEST_SPLIT))
        return instances


@run_spec_function("own")
def make_run():
    scenario = ScenarioSpec(class_name="own_requests.OwnScenario")
    adapter = AdapterSpec(method=ADAPT_GENERATION, max_train_instances=0, num_outputs=1)
    return RunSpec("own", scenario, adapter, metric_specs=[], groups=[])


register_model_deployment(
    ModelDeployment(
        name="own/model",
        client_spec=ClientSpec("own_requests.OwnClient"),
        tokenizer_name="simple/tokenizer1",
        max_sequence_length=2048,
    )
)
