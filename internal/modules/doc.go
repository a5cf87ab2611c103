// Package modules groups the host's own tools: one folder for each module,
// and standard, which lists them.
//
// A module imports tool, module and the packages that its tools are made of,
// never another module: modules call each other through dispatch. Only app
// and tests import standard. Begin with file, the largest, or with ws, the
// smallest.
package modules
