// Package repotest tests the repository itself: which package may import
// which, what every package says about itself, which tools are offered in what form,
// and what became of every ability of the five designs.
//
// It holds no code of the product and nothing imports it. Each failure names
// the file and the reason for the rule, so that a newcomer can tell whether
// the file is wrong or the rule is. Two tests have files they compare with:
//
//	go test ./internal/tests/repotest -update     accept changed tool schemas
//	go generate ./internal/tests/repotest/gen     write docs/modules anew
package repotest
