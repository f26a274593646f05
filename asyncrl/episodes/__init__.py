"""Episodes: several turns of the policy, each after what an environment, a tool or an agent program answered."""
