"""What engine authors test with. Imports without hypothesis."""
