"""Run the experiment on captions and speech."""

from studies.tasks.experiment import main

if __name__ == "__main__":
    main()
