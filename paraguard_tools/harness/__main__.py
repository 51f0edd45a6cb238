"""Print the folder of the task of lm-evaluation-harness, for its `--include_path`."""

from paraguard_tools.harness import LM_EVAL

if __name__ == "__main__":
    print(LM_EVAL)
