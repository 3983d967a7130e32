"""The one table of states and transitions."""

from __future__ import annotations

from jobrail_django.broker.scripts import Script, load
from jobrail_django.states import FINAL, TRANSITIONS, WAITING, State, Verb, is_legal


def test_every_state_but_staged_is_reached_by_a_transition():
    reached = {transition.target for transition in TRANSITIONS}

    # staged and in_doubt come with durable enqueue and effects
    assert reached == set(State) - {State.STAGED, State.IN_DOUBT}


def test_only_a_new_round_leaves_a_final_state():
    leaving = {(transition.source, transition.by) for transition in TRANSITIONS if transition.source in FINAL}

    # a retry in Redis, or of a job that Redis has let go of
    assert leaving == {(state, by) for state in (State.DEAD, State.CANCELLED) for by in (Verb.RETRY, Verb.ENQUEUE)}


def test_running_begins_when_a_ready_job_is_claimed():
    starting = {(transition.source, transition.by) for transition in TRANSITIONS if transition.target is State.RUNNING}

    assert starting == {(State.READY, Verb.CLAIM), (State.READY, Verb.SETTLE)}


def test_cancel_ends_every_waiting_state():
    assert all(is_legal(state, State.CANCELLED, Verb.CANCEL) for state in WAITING)


def test_transition_not_in_the_table_is_illegal():
    assert not is_legal(State.SUCCEEDED, State.RUNNING, Verb.CLAIM)
    assert not is_legal(State.DEAD, State.READY, Verb.PROMOTE)


def test_scripts_declare_the_transitions_of_the_table():
    declared = {
        (None if source == "none" else State(source), State(target), script.value)
        for script in Script
        for source, target in load(script).header.changes
    }

    assert {(row.source, row.target, row.by.value) for row in TRANSITIONS} == declared


def test_transitions_are_listed_once():
    assert len(set(TRANSITIONS)) == len(TRANSITIONS)


def test_state_prints_as_its_stored_value():
    assert f"{State.READY}" == str(State.READY) == State.READY.value == "ready"
