"""Run the experiment on captions and speech."""

from npad.experiments.tasks.experiment import run

if __name__ == "__main__":
    run()
