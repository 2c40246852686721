# The commands: `make run` opens Rusty in the terminal, `make full` installs all of it, `make test` proves that it works.
.PHONY: run full test bench clean
VENV ?= .venv

run:
	@sh tools/env.sh $(VENV) train
	@$(VENV)/bin/python -m rusty_r2.welcome

# everything a user can use: borrowed minds, export, the page, plots
full:
	@sh tools/env.sh $(VENV) train,data,lora,smollm2,export,web,plots
	@echo "next: . $(VENV)/bin/activate && rusty --help"

test:
	@sh tools/env.sh $(VENV) train,data,lora,smollm2,export,web,plots,ray,postgres,dev
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check -q .
	@$(VENV)/bin/mypy
	@OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(TESTS)

bench:
	@sh tools/env.sh $(VENV) train,data,lora,smollm2,export,plots,dev
	@for script in benchmarks/*.py; do OMP_NUM_THREADS=1 $(VENV)/bin/python $$script || exit 1; done

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
