# Two commands do everything on a machine with Python 3.11: make demo, make test.
# A Python of at least 3.11.
PYTHON ?= $(shell command -v python3.11 || echo python3)
RUN := .venv/bin/python

.PHONY: install demo federation federation-eight federation-week test test-long test-all test-fuzz test-faults lint format docs site gallery release bench claims claims-check clean

install: .venv/installed

demo: .venv/installed
	$(RUN) -m silofl demo --out demo

# A server and three hospitals over mutual TLS on this machine, from nothing to a result.
federation: .venv/installed
	rm -rf federation
	$(RUN) -m provisioning run-federation --out federation

# What happens to such a network in a week, each event with its checks; under 25 minutes on two cores.
federation-week: .venv/installed
	rm -rf federation-week
	$(RUN) -m tests.provisioning.week --out federation-week

# A run of eight hospitals, each with a trouble of its own, and no hand on it; SEEDS="1 2 3" for more than one. As root.
SEEDS ?= 1
federation-eight: .venv/installed
	$(RUN) -m tests.provisioning.eight --out federation-eight --seeds $(SEEDS)

# make test ROOM=tests/core: those of one room. Cores share the tests in their order, so that a fixture is made once, and
# who has no more takes half of another's rest.
MARKS := not long and not slow and not fuzz and not faults
test: .venv/installed
	$(RUN) -m pytest $(ROOM) -m "$(MARKS)" -n logical --dist worksteal

# Files of whole runs, of networks and of exports.
test-long: MARKS := long and not slow
test-long: test

test-all: .venv/installed
	$(RUN) -m pytest -n logical --dist loadfile

# At most 2,000 cases; the same ones every time.
test-fuzz: .venv/installed
	$(RUN) -m pytest tests/fuzz -n logical --dist worksteal

# Long. As root also disks that fill up and networks that are cut.
test-faults: .venv/installed
	$(RUN) -m pytest tests/faults -n 2 --dist worksteal

lint: .venv/installed
	$(RUN) -m ruff check custom tests bench provisioning recipes docs/site
	$(RUN) -m ruff format --check custom tests bench provisioning recipes docs/site
	$(RUN) -m mypy
	$(RUN) bench/house.py --check

format: .venv/installed
	$(RUN) -m ruff check --fix custom tests bench provisioning recipes docs/site
	$(RUN) -m ruff format custom tests bench provisioning recipes docs/site

# docs/study.md, from the settings.
docs: .venv/installed
	$(RUN) docs/site/study_page.py docs/study.md

# All pages as a site with search, in site/: nothing misspelt, no link that leads nowhere, every reader's question found.
# Loads nothing from outside, also when it is read: python -m http.server -d site. Needs node.
WORDS := *.md docs bench/*.md jobs/*.md provisioning recipes site_configs
site: .venv-site/installed
	.venv-site/bin/codespell $(WORDS) --skip '*.png' --ignore-words-list fo,neumonia
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build -f docs/site/mkdocs.yml
	node docs/site/search.mjs site

# Five reports for the site's gallery, all from simulated hospitals; call it before make site.
GALLERY := runs/gallery
gallery: .venv/installed
	rm -rf $(GALLERY)
	$(RUN) -m silofl demo --out $(GALLERY)/demo
	$(RUN) -m silofl simulate fedavg_classes --in-process --sites north,east,south --out $(GALLERY)/classes
	$(RUN) -m silofl simulate fedavg_masks_3d --in-process --rounds 4 --out $(GALLERY)/volumes
	$(RUN) -m provisioning run-federation --out $(GALLERY)/federation
	cp "$$(find $(GALLERY)/federation/results -name report.html)" $(GALLERY)/network.html
	$(RUN) -m silofl evaluate $(GALLERY)/classes/supermodel stains/west --out $(GALLERY)/evaluation

.venv-site/installed: docs/site/requirements.txt
	$(PYTHON) -m venv .venv-site
	.venv-site/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

# Wheels, source archives, checksums and SBOM in dist, checked and tried; last the version's tag. Of a clean clone.
release: .venv/installed
	$(RUN) -m provisioning release dist

# The promises of speed, each beside its rival; on two quiet cores. SHORT=--short fails on gross breaks only.
bench: .venv/installed
	$(RUN) bench/speed.py $(SHORT)

# What each paper claims: one table a paper, with the rates in bench/rates.json, in runs/claims.
claims: .venv/installed
	$(RUN) bench/claims.py --out runs/claims

# Whether five stored rates come out again; DATA holds the public sets, one folder each. A few minutes.
DATA ?= data
claims-check: .venv/installed
	$(RUN) bench/claims.py --check --data $(DATA) --out runs/claims

FURTHER := custom/silofl_hospital custom/silofl_desk custom/silofl_clinic
# The lock's versions of all packages; not its checksums, which are those of one platform's files.
.venv/installed: requirements.txt requirements.lock custom/pyproject.toml $(addsuffix /pyproject.toml,$(FURTHER))
	test -x $(RUN) || $(PYTHON) -m venv .venv
	$(RUN) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python must be at least 3.11: make PYTHON=...")'
	sed 's/ --hash=.*//' requirements.lock > .venv/versions.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements.txt -c .venv/versions.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps -e custom $(addprefix -e ,$(FURTHER))
	touch $@

clean:
	rm -rf .venv .venv-site site demo federation federation-week
