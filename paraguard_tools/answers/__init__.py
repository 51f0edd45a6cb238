"""What an answer in somebody's log is: help, a refusal, a stop, or none at all.

The frozen labeller of the study (`paraguard_utils.labels`) reads English answers of
models that answered. Logs also have errors in place of answers, thinking, fixed lines
of products and other languages: they are seen to here (`docs/labels.md`).
"""
