// Package config is the configuration of a host: one plain struct per
// subsystem, the defaults in one place, and the sources of each value.
//
// Nothing here opens a file for writing, listens or creates. The caller takes
// Default, FromEnv for the environment, or Load for gatehouse.yaml as well,
// then applies its flags and calls Validate. The environment overrides the
// file; flags override both. An error names the setting, its value and what
// was expected, with line and column in the file; several are reported at
// once. App and cli import config. Begin with Config.
package config
