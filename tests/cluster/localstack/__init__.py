"""The whole product on the local cluster: chart, profile of this machine, one deployment, one restored request."""
