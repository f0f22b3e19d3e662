"""The scikit-learn estimator `GPXRegressor`, and the fitted model behind it."""
