"""What the measures measure: chance, validity, sensitivity, variance, vetoes, predictions."""
