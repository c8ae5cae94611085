"""Virtual time: due first acts first, due together acts in the order of entry."""

from roma.lab.sim.agenda import Agenda


def test_what_is_due_first_acts_first_and_ties_act_in_the_order_of_entry():
    agenda, seen = Agenda(), []
    for time, name in [(2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")]:
        agenda.at(time, lambda n: seen.append((agenda.now, n)), name)
    agenda.run(3.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c"), (2.0, "d")]
    assert agenda.now == 3.0


def test_what_is_due_at_the_end_stays_for_the_next_run():
    agenda, seen = Agenda(), []
    agenda.at(1.0, seen.append, "x")
    agenda.run(1.0)
    assert (seen, agenda.now) == ([], 1.0)
    agenda.run(1.5)
    assert seen == ["x"]


def test_acts_can_enter_acts_and_a_passed_time_means_now():
    agenda, seen = Agenda(), []

    def act(depth):
        seen.append((agenda.now, depth))
        if depth < 2:
            agenda.at(agenda.now - 5.0, act, depth + 1)

    agenda.at(1.0, act, 0)
    agenda.run(2.0)
    assert seen == [(1.0, 0), (1.0, 1), (1.0, 2)]


def test_time_never_runs_back():
    agenda, seen = Agenda(), []
    agenda.at(1.0, lambda _: agenda.at(0.5, lambda _: seen.append(agenda.now)))
    agenda.at(1.0, lambda _: seen.append(agenda.now))
    agenda.run(2.0)
    assert seen == [1.0, 1.0]
