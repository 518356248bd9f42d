"""Run the experiment on captions and speech."""

from studies.tasks.experiment import run

if __name__ == "__main__":
    run()
