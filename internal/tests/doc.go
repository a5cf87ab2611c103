// Package tests groups the packages that exist for tests: hosttest (a whole
// host in memory), conformance (the official suites, SDKs and clients) and
// repotest (rules about this repository).
//
// Only tests and generators import them; they may import every package. Begin
// with hosttest.
package tests
