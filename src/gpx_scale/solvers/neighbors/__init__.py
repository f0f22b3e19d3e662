"""The solver that conditions each query on shared rows and on its neighbours."""
