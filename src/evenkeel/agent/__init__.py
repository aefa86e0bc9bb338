"""The agent: it joins the rooms below to a node that runs pods."""
