"""Labels checked: agreement with people, follow-up questions, a judge."""
