"""Which branches of dependency trees the instances keep."""
