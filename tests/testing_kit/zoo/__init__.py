"""The zoo: twenty-one small applications, each with one bug of real users of Kafka and its correct twin (`correct=True`).

A module has the application, the symptom of its bug, and `check`, the test that a user would write: it fails with the bug and passes
with the twin. docs/testing/bugs.md lists them for users.
"""
