"""One line: rewritten on a terminal, said now and then anywhere else."""

import io
import time

from rusty_r2.train.progress import Progress, as_a_stage, spell, stopped


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_the_line_is_rewritten_and_words_stand_alone():
    screen = Terminal()
    progress = Progress(100, stream=screen)
    progress.report(1, 512, {"loss": 3.25})
    progress.say("saved")
    progress.report(2, 1024, {"loss": 3.0})
    progress.close()
    lines = screen.getvalue().split("\n")
    first, *_, blank, said = lines[0].split("\r")
    assert first.startswith("step 1/100  loss 3.25") and "tok/s" in first and first.endswith("left")
    assert set(blank) == {" "} and said == "saved"
    assert lines[1].startswith("step 2/100  loss 3  ") and lines[2:] == [""]


def test_elsewhere_there_are_few_lines_and_the_last():
    log = io.StringIO()
    progress = Progress(50, stream=log)
    for step in range(1, 51):
        progress.report(step, step, {})
    assert [line.split()[1] for line in log.getvalue().splitlines()] == ["1/50", "50/50"]


def test_a_reader_that_is_gone_ends_no_training():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    progress = Progress(2, stream=Gone())
    progress.report(1, 8, {})
    progress.say("saved")
    assert progress.quiet


def test_speed_leaves_out_pauses_and_what_an_earlier_try_did():
    progress = Progress(50, quiet=True)
    progress.begin_at(40)
    progress.pause(-1000.0)  # a thousand seconds more than have passed
    assert 0.4 < progress.report(45, 500, {}) < 0.5


def test_where_the_clock_ends_the_run_that_is_the_time_left():
    for over, left in ((600.0, " 10 min left"), (-5.0, " 0 s left")):
        log = io.StringIO()
        progress = Progress(1_000_000_000, until=time.monotonic() + over, stream=log)
        progress.pause(-1000.0)
        progress.report(1, 1, {})
        assert log.getvalue().strip().endswith(left)


def test_time_is_spelled_for_people():
    assert [spell(s) for s in (0, 90, 600, 9000, 400_000)] == ["0 s", "90 s", "10 min", "2.5 h", "4.6 days"]


def test_a_stage_leaves_it_to_its_command_to_say_how_to_go_on():
    assert stopped("at step 2", "rusty train kto").endswith("saved. Go on: rusty train kto")
    with as_a_stage():
        assert stopped("at step 2", "rusty train kto") == "stopped at step 2, saved"
