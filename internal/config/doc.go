// Package config is the configuration of a host: one plain struct per subsystem, one place for the defaults, and
// the source of each value.
//
// This package opens no file for writing, no listener, and creates nothing. The caller uses Default, FromEnv for
// the environment, or Load for gatehouse.yaml as well, then applies its flags and calls Validate. The environment
// overrides the file; flags override both. An error names the setting, its value and what was expected, with line
// and column in the file; several are reported at once. App and cli import config. Begin with Config.
package config
