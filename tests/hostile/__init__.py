"""Whatever a stranger may hand over. `archives`: damaged and lying files of what is kept; `readers`, `commands`: every
reader and command with good input, from which `made` makes hostile ones; `forks`: each tried in a process of its own,
with limits; the tests say what holds for all."""
