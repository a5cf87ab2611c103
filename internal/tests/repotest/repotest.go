// Package repotest tests the repository itself: which package may import which, how packages are documented, which
// tools are offered in what form, and what became of every ability of the five designs.
//
// It contains no code of the product, and no package imports it. Each failure names the file and the reason for the
// rule, so that a newcomer can decide whether the file or the rule is wrong. Two tests compare with files:
//
//	go test ./internal/tests/repotest -update     accept changed tool schemas
//	go generate ./internal/tests/repotest/gen     write docs/modules anew
package repotest
