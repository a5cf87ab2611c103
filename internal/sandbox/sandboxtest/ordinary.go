package sandboxtest

// OrdinaryUser is set in the environment of a test that RunAsOrdinary runs, and OrdinaryFiles is the folder with the
// files that the user has.
const (
	OrdinaryUser  = "GATEHOUSE_TEST_ORDINARY"
	OrdinaryFiles = "GATEHOUSE_TEST_ORDINARY_FILES"
)
